//! What a lying replica says of ranges.

use basil::Transaction;
use basil::message::{PendingWrite, ReadResult, ScanRow};
use types::{Direction, Key, KeyRange, Timestamp};

use super::world::Lie;

/// Has a liar's page say what the lie wants.
pub fn distort_page(
    lie: &Lie,
    (range, direction): (&KeyRange, Direction),
    rows: &mut Vec<ScanRow>,
    end: &mut Key,
    prepared: &mut Vec<Transaction>,
) {
    let mut say = |key: &Key, result: ReadResult| {
        rows.retain(|row| row.key != *key);
        rows.push(ScanRow { key: key.clone(), result });
        rows.sort_by(|one, other| direction.order(&one.key, &other.key));
    };
    match lie {
        Lie::Says { key, version, value } if range.contains(key) => {
            say(key, ReadResult { version: *version, value: Some(value.clone()), pending: PendingWrite::None });
        }
        Lie::Offers { key, transaction } if range.contains(key) => {
            let place = u16::try_from(prepared.len()).expect("scripts read few keys");
            prepared.push(transaction.clone());
            say(key, ReadResult { version: Timestamp::ZERO, value: None, pending: PendingWrite::Prepared(place) });
        }
        Lie::Hides { key } => rows.retain(|row| row.key != *key),
        Lie::Stops { key } => {
            *end = key.clone();
        }
        Lie::ClaimsAll => *end = direction.end(range).clone(),
        _ => {}
    }
    rows.retain(|row| direction.has_passed(&row.key, end));
}
