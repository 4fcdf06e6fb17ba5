//! Moments of the whole database: how one is chosen, and what is said of it.
//!
//! A *cut* is an ordinary transaction over all shards that reads nothing and locks everything ([`cut`]). If it commits, then at the moment of its
//! last vote each shard holds its locks on all keys: no change is pending anywhere, and the rows of each shard are as they were when the cut was
//! executed there. So these rows together are the database as of that moment.
//!
//! Replicas hold them for a while ([`held`](crate::held)), and give them out a page at a time to the cut's author, without ordering anything. They
//! never change, so `f+1` replicas that say the same are enough.

use bytes::Bytes;
use types::codec::{Decode, DecodeError, Encode, Reader, encode_count};
use types::limits::KEY_BYTES_MAX;
use types::{Direction, Key, KeyRange, TransactionId, Value};

use crate::limits::RANGE_ROWS_MAX;
use crate::operation::Operation;
use crate::transaction::{Name, Transaction};

/// Questions begin otherwise than transactions, which are questions, too.
const PAGE_QUESTION: u8 = 2;
const DROP_QUESTION: u8 = 3;

/// The operations of a cut: a range from which no row is wanted, and the one key that no range holds.
///
/// # Panics
/// Never.
#[must_use]
pub fn cut() -> Vec<Operation> {
    let last = Key::new(vec![0xff; KEY_BYTES_MAX]).expect("it is as long as keys may be");
    let all = KeyRange::new(Key::default(), last.clone()).expect("the empty key is the first");
    vec![Operation::ReadRange(all, Direction::Ascending, 0), Operation::Read(last)]
}

/// Whether a transaction is a cut.
pub(crate) fn is_cut(transaction: &Transaction) -> bool {
    // Nearly all others end here.
    matches!(transaction.operations(), [Operation::ReadRange(_, _, 0), Operation::Read(_)]) && transaction.operations() == cut()
}

/// What its author asks of a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Rows of this moment.
    Page {
        /// The cut's name.
        name: Name,
        /// Its id.
        id: TransactionId,
        /// The read of a key, or of a range.
        operation: Operation,
    },
    /// Nobody will ask for more of it.
    Drop(TransactionId),
}

impl Question {
    /// Whether a question is about a moment.
    pub(crate) fn is_one(question: &Bytes) -> bool {
        matches!(question.first(), Some(&(PAGE_QUESTION | DROP_QUESTION)))
    }
}

/// What a replica says of a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MomentAnswer {
    /// These rows of it.
    Page(MomentPage),
    /// The cut was executed here, but what there was then is not kept any more.
    Gone,
}

/// Rows of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MomentPage {
    /// The rows, in the direction in which they were asked for.
    pub rows: Vec<(Key, Value)>,
    /// Up to which key these are all; nothing where they are all that was asked for.
    pub last: Option<Key>,
}

impl MomentPage {
    /// Whether it has all rows up to there.
    fn reaches(&self, direction: Direction, end: Option<&Key>) -> bool {
        match (&self.last, end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(last), Some(end)) => direction.order(last, end).is_ge(),
        }
    }

    /// Its rows up to there.
    fn up_to(&self, direction: Direction, end: Option<&Key>) -> &[(Key, Value)] {
        let count = end.map_or(self.rows.len(), |end| self.rows.partition_point(|(key, _)| direction.order(key, end).is_le()));
        &self.rows[..count]
    }

    /// Whether no other of these pages reaches further.
    pub(crate) fn is_furthest(&self, direction: Direction, pages: &[&Self]) -> bool {
        pages.iter().all(|page| self.reaches(direction, page.last.as_ref()))
    }

    /// The longest page that so many of these say alike. How far each reaches depends on what was changed since at the replica that gave it, so
    /// they may differ in that alone.
    pub(crate) fn agreed(direction: Direction, pages: &[&Self], needed: usize) -> Option<Self> {
        let mut ends: Vec<Option<&Key>> = pages.iter().map(|page| page.last.as_ref()).collect();
        ends.sort_unstable_by(|one, other| match (one, other) {
            (Some(one), Some(other)) => direction.order(*other, *one),
            // Whoever has all comes first.
            (one, other) => one.is_some().cmp(&other.is_some()),
        });
        ends.dedup();
        ends.into_iter().find_map(|end| {
            let reaching = pages.iter().filter(|page| page.reaches(direction, end));
            let reaching: Vec<&[(Key, Value)]> = reaching.map(|page| page.up_to(direction, end)).collect();
            let is_agreed = |rows: &&&[(Key, Value)]| reaching.iter().filter(|other| other == rows).count() >= needed;
            let rows = reaching.iter().find(is_agreed)?;
            Some(Self { rows: rows.to_vec(), last: end.cloned() })
        })
    }
}

impl Encode for Question {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Page { name, id, operation } => {
                out.push(PAGE_QUESTION);
                name.encode(out);
                id.0.encode(out);
                operation.encode(out);
            }
            Self::Drop(id) => {
                out.push(DROP_QUESTION);
                id.0.encode(out);
            }
        }
    }
}

impl Decode for Question {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            PAGE_QUESTION => {
                let (name, id) = (Name::decode(reader)?, TransactionId(reader.array()?));
                let operation = Operation::decode(reader)?;
                match operation {
                    Operation::Read(_) | Operation::ReadRange(..) => Ok(Self::Page { name, id, operation }),
                    _ => Err(DecodeError::NotCanonical("a question that reads")),
                }
            }
            DROP_QUESTION => Ok(Self::Drop(TransactionId(reader.array()?))),
            _ => Err(DecodeError::UnknownTag("a question about a moment")),
        }
    }
}

impl Encode for MomentAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Page(MomentPage { rows, last }) => {
                out.push(1);
                encode_count(rows.len(), out);
                for (key, value) in rows {
                    key.encode(out);
                    value.encode(out);
                }
                last.encode(out);
            }
            Self::Gone => out.push(2),
        }
    }
}

impl Decode for MomentAnswer {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            1 => {
                let count = reader.count("rows", RANGE_ROWS_MAX)?;
                reader.note_sequence::<(Key, Value)>(count);
                let rows = (0..count).map(|_| Ok((Key::decode(reader)?, Value::decode(reader)?)));
                let rows = rows.collect::<Result<_, DecodeError>>()?;
                Ok(Self::Page(MomentPage { rows, last: Option::decode(reader)? }))
            }
            2 => Ok(Self::Gone),
            _ => Err(DecodeError::UnknownTag("an answer about a moment")),
        }
    }
}

#[cfg(test)]
mod tests {
    use types::ClusterId;

    use super::*;

    fn page(keys: &[&str], last: Option<&str>) -> MomentPage {
        let rows = keys.iter().map(|key| (Key::from(*key), Value::from("1"))).collect();
        MomentPage { rows, last: last.map(Key::from) }
    }

    fn agreed(direction: Direction, pages: &[MomentPage]) -> Option<MomentPage> {
        MomentPage::agreed(direction, &pages.iter().collect::<Vec<_>>(), 2)
    }

    #[test]
    fn pages_count_as_far_as_two_say_the_same() {
        let (up, down) = (Direction::Ascending, Direction::Descending);
        let whole = page(&["a", "b", "c"], None);
        assert_eq!(agreed(up, &[whole.clone(), whole.clone()]), Some(whole.clone()));
        assert_eq!(agreed(up, &[whole.clone(), page(&["a", "b"], Some("b1"))]), Some(page(&["a", "b"], Some("b1"))));
        // A liar that adds, leaves out or reaches too far changes nothing.
        for lie in [page(&["a", "a1", "b", "c"], None), page(&["a", "c"], None), page(&[], None), page(&["c", "a"], None)] {
            assert_eq!(agreed(up, &[lie, whole.clone(), page(&["a", "b"], Some("b"))]), Some(page(&["a", "b"], Some("b"))));
        }
        assert_eq!(agreed(up, &[whole.clone(), page(&["b", "c"], None)]), None);
        assert_eq!(agreed(up, std::slice::from_ref(&whole)), None);
        let from_the_end = [page(&["c", "b", "a"], None), page(&["c"], Some("b3"))];
        assert_eq!(agreed(down, &from_the_end), Some(page(&["c"], Some("b3"))));
    }

    #[test]
    fn what_is_said_can_be_read() {
        let cluster = ClusterId::new([7; 16]);
        let (id, name) = (TransactionId([3; 32]), Name { client: types::ClientId(1), session: 2, number: 3 });
        let question = Question::Page { name, id, operation: Operation::Read(Key::from("a")) };
        for question in [question, Question::Drop(id)] {
            let bytes = Bytes::from(question.to_bytes());
            assert!(Question::is_one(&bytes));
            assert_eq!(Question::from_bytes(bytes, cluster), Ok(question));
        }
        let transaction = Transaction::new(cluster, name, cut()).expect("it is small");
        assert!(is_cut(&transaction) && !Question::is_one(transaction.encoded()));
        for answer in [MomentAnswer::Page(page(&["a"], Some("b"))), MomentAnswer::Gone] {
            assert_eq!(MomentAnswer::from_bytes(answer.to_bytes().into(), cluster), Ok(answer));
        }
    }
}
