//! How values are read and written.

use bytes::Bytes;

/// Why bytes are no message. That is ordinary: anybody can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The input ended inside a value.
    #[error("the input ends inside a value")]
    Truncated,
    /// Bytes are left over after the last value.
    #[error("bytes trail the last value")]
    Trailing,
    /// A length or a count is negative, or over its limit.
    #[error("{0} has an impossible length")]
    Length(&'static str),
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    NotText,
    /// A tag or a flag has no meaning.
    #[error("{0} has no such value")]
    Unknown(&'static str),
}

/// The length of what is not there.
const ABSENT: i32 = -1;
/// For how many elements of a list memory is reserved before the first is read.
const RESERVED_MAX: usize = 1_024;

/// Reads a frame's body.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// How many bytes are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Ends reading.
    ///
    /// # Errors
    /// [`Malformed::Trailing`] when anything is left.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.bytes.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] when there are fewer.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] when there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or(Malformed::Truncated)?;
        self.bytes = rest;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// A 32-bit integer.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn int(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    /// A 64-bit integer.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn long(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// Any other byte, or none.
    pub fn boolean(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Unknown("a flag")),
        }
    }

    /// A buffer, copied: what is kept of a request does not keep its frame. `None` is not the same as an empty one.
    ///
    /// # Errors
    /// An impossible length, or too few bytes.
    pub fn buffer(&mut self) -> Result<Option<Bytes>, Malformed> {
        Ok(self.slice("a buffer")?.map(Bytes::copy_from_slice))
    }

    /// A string that is there.
    ///
    /// # Errors
    /// An impossible length, too few bytes, or other bytes than UTF-8.
    pub fn string(&mut self) -> Result<String, Malformed> {
        self.optional_string()?.ok_or(Malformed::Length("a string"))
    }

    /// A string that may be absent.
    ///
    /// # Errors
    /// An impossible length, too few bytes, or other bytes than UTF-8.
    pub fn optional_string(&mut self) -> Result<Option<String>, Malformed> {
        let Some(bytes) = self.slice("a string")? else { return Ok(None) };
        std::str::from_utf8(bytes).map(|text| Some(text.to_owned())).map_err(|_| Malformed::NotText)
    }

    fn slice(&mut self, what: &'static str) -> Result<Option<&'a [u8]>, Malformed> {
        match self.int()? {
            ABSENT => Ok(None),
            length => self.take(usize::try_from(length).map_err(|_| Malformed::Length(what))?).map(Some),
        }
    }

    /// A list, each element read by `read`; an absent list is an empty one. Each element takes at least one byte of the input, so no
    /// count can ask for more memory than a multiple of what arrived.
    ///
    /// # Errors
    /// An impossible count, or what `read` refuses.
    pub fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        let count = match self.int()? {
            ABSENT => 0,
            count => usize::try_from(count).map_err(|_| Malformed::Length("a list"))?,
        };
        if count > self.remaining() {
            return Err(Malformed::Truncated);
        }
        let mut list = Vec::with_capacity(count.min(RESERVED_MAX));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }
}

/// Writes values to the end of a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Writes to the end of `out`.
    #[must_use]
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// One byte.
    pub fn byte(&mut self, value: u8) {
        self.out.push(value);
    }

    /// A 32-bit integer.
    pub fn int(&mut self, value: i32) {
        self.raw(&value.to_be_bytes());
    }

    /// A 64-bit integer.
    pub fn long(&mut self, value: i64) {
        self.raw(&value.to_be_bytes());
    }

    /// A byte that is 0 or 1.
    pub fn boolean(&mut self, value: bool) {
        self.byte(u8::from(value));
    }

    /// A buffer, or that there is none.
    pub fn buffer(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.int(ABSENT),
            Some(bytes) => {
                self.count(bytes.len());
                self.raw(bytes);
            }
        }
    }

    /// A string.
    pub fn string(&mut self, value: &str) {
        self.buffer(Some(value.as_bytes()));
    }

    /// A string, or that there is none.
    pub fn optional_string(&mut self, value: Option<&str>) {
        self.buffer(value.map(str::as_bytes));
    }

    /// A list, each element written by `write`.
    pub fn list<T>(&mut self, elements: impl ExactSizeIterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.count(elements.len());
        for element in elements {
            write(self, element);
        }
    }

    fn count(&mut self, count: usize) {
        self.int(i32::try_from(count).expect("what is sent is shorter than two gigabytes: requests are bounded, and replies are checked"));
    }
}
