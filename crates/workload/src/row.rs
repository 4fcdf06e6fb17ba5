//! How rows are written: their fields in order, in the canonical encoding of [`types::codec`], behind a format version.
//!
//! Rows come back from a store that others write to as well, so what is no row is an ordinary answer: a finding.

use std::fmt;

use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use types::{ClusterId, Value};

/// The version that every row begins with.
pub(crate) const ROW_VERSION: u8 = 1;
/// The longest text in a row.
const TEXT_BYTES_MAX: usize = 512;

/// A row of a table.
pub(crate) trait Row: Encode + Decode {
    /// What the table is called in findings.
    const TABLE: &'static str;

    /// The row as it is stored.
    fn to_value(&self) -> Value {
        let mut out = vec![ROW_VERSION];
        self.encode(&mut out);
        Value::new(out).expect("rows are far below the limit of a value")
    }

    /// The row that is stored as `value`.
    fn parse(value: &Value) -> Result<Self, DecodeError> {
        // Rows hold no identifiers, so which cluster's they are does not matter.
        let mut reader = Reader::new(value.to_shared(), ClusterId::new([0; 16]));
        if u8::decode(&mut reader)? != ROW_VERSION {
            return Err(DecodeError::UnknownTag("a row's format version"));
        }
        let row = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(row)
    }
}

/// The row stored as `value`, or what is wrong, in words: it is missing, or no row of its table.
pub(crate) fn row<R: Row>(value: Option<&Value>, name: impl fmt::Display) -> Result<R, String> {
    let value = value.ok_or_else(|| format!("{} {name} is missing", R::TABLE))?;
    R::parse(value).map_err(|error| format!("{} {name} is not what was stored: {error}", R::TABLE))
}

/// Defines rows: structures whose fields are encoded in their order.
macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident of $table:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: $type,)*
        }

        impl types::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$field.encode(out);)*
            }
        }

        impl types::codec::Decode for $name {
            fn decode(reader: &mut types::codec::Reader) -> Result<Self, types::codec::DecodeError> {
                Ok(Self { $($field: types::codec::Decode::decode(reader)?,)* })
            }
        }

        impl $crate::row::Row for $name {
            const TABLE: &'static str = $table;
        }
    )*};
}
pub(crate) use rows;

/// A sum of money in cents, below zero for debts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cents(pub(crate) i64);

impl Cents {
    /// The sum of two; a sum that no row can hold is none.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
}

/// In the currency's main unit, as people write it.
impl fmt::Display for Cents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let cents = self.0.unsigned_abs();
        write!(formatter, "{sign}{}.{:02}", cents / 100, cents % 100)
    }
}

/// As the two's complement.
impl Encode for Cents {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.cast_unsigned().encode(out);
    }
}

impl Decode for Cents {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(u64::decode(reader)?.cast_signed()))
    }
}

/// A short text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(String);

impl Text {
    /// `text`, cut where a row ends to have room for it.
    pub(crate) fn new(mut text: String) -> Self {
        if text.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
        }
        Self(text)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::new(text.to_owned())
    }
}

impl Encode for Text {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.0.len(), out);
        out.extend_from_slice(self.0.as_bytes());
    }
}

impl Decode for Text {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let length = reader.count("a text", TEXT_BYTES_MAX)?;
        let bytes = reader.take(length)?;
        std::str::from_utf8(&bytes).map(Self::from).map_err(|_| DecodeError::NotCanonical("a text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    rows! {
        /// A row with every kind of field.
        Sample of "sample" {
            /// A number.
            number: u32,
            /// Money.
            money: Cents,
            /// A name.
            name: Text,
            /// Perhaps.
            perhaps: Option<u64>,
        }
    }

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(number: u32, money: i64, name in ".{0,60}", perhaps: Option<u64>) {
            let sample = Sample { number, money: Cents(money), name: Text::new(name), perhaps };
            prop_assert_eq!(Sample::parse(&sample.to_value()), Ok(sample));
        }

        #[test]
        fn a_damaged_row_is_refused_or_another_row(number: u32, cut in 0_usize..40, at in 0_usize..40, with: u8) {
            let sample = Sample { number, money: Cents(-1), name: Text::from("abc"), perhaps: Some(7) };
            let bytes = sample.to_value().as_bytes().to_vec();
            let short = Value::new(bytes[..cut.min(bytes.len() - 1)].to_vec()).expect("short");
            prop_assert!(Sample::parse(&short).is_err());
            let mut changed = bytes.clone();
            let at = at % bytes.len();
            changed[at] = with;
            let changed = Value::new(changed).expect("short");
            if with != bytes[at] {
                prop_assert_ne!(Sample::parse(&changed), Ok(sample));
            }
        }
    }

    #[test]
    fn what_is_missing_or_no_row_is_told() {
        assert_eq!(row::<Sample>(None, 7).expect_err("nothing"), "sample 7 is missing");
        let found = row::<Sample>(Some(&Value::from("x")), "a/b").expect_err("no row");
        assert_eq!(found, "sample a/b is not what was stored: a row's format version has no such tag");
        let mut long = vec![ROW_VERSION];
        (7_u32, Cents(0)).0.encode(&mut long);
        Cents(0).encode(&mut long);
        encode_count(TEXT_BYTES_MAX + 1, &mut long);
        long.extend(vec![b'a'; TEXT_BYTES_MAX + 1]);
        assert_eq!(Sample::parse(&Value::new(long).expect("short")), Err(DecodeError::OverLimit("a text")));
    }

    #[test]
    fn money_is_written_as_people_do() {
        assert_eq!([0, 5, -5, 12_345, -12_345].map(|cents| Cents(cents).to_string()), ["0.00", "0.05", "-0.05", "123.45", "-123.45"]);
        assert_eq!(Cents(i64::MAX).plus(Cents(1)), None);
        assert_eq!(Text::new("é".repeat(TEXT_BYTES_MAX)).to_string().len(), TEXT_BYTES_MAX);
    }
}
