//! Choices read from bytes, one after the other.
//!
//! When the bytes are used up every choice is the first, so that an input cut short is an input too, and builders put what
//! is ordinary first.

/// The bytes not used yet.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Chooses by `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether the bytes are used up.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next bytes, as many as `count` if there are as many.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// A number.
    pub fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    /// A number below `count`, which is at most 65,536; 0 when that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        if count <= 1 {
            return 0;
        }
        let drawn = if count <= 256 { usize::from(self.byte()) } else { usize::from(self.byte()) | usize::from(self.byte()) << 8 };
        drawn % count
    }

    /// One of `items`, of which there is at least one.
    pub fn one_of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// True for about one byte in `of`, and not for 0.
    pub fn rarely(&mut self, of: u8) -> bool {
        self.byte() % of == of - 1
    }
}
