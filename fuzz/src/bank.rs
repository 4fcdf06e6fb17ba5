//! The bank's rows are text, which somebody may write with other blanks; read again they mean the same.

#[path = "../../crates/workload/src/bank/ledger.rs"]
#[expect(dead_code, reason = "only what reading needs is used here")]
mod ledger;

use ledger::{Meta, Runs, Transfer, parse_balance};
use types::Value;
use workload::{ACCOUNTS_MAX, ACCOUNTS_MIN};

pub(crate) fn check(value: &Value) {
    if let Ok(meta) = Meta::parse(value) {
        assert_eq!(Meta::parse(&meta.to_value()), Ok(meta));
    }
    if let Ok(runs) = Runs::parse(value) {
        assert_eq!(Runs::parse(&runs.to_value()), Ok(runs));
    }
    if let Some(transfer) = Transfer::parse(value) {
        assert_eq!(Transfer::parse(&transfer.to_value()), Some(transfer));
    }
    if let Some(balance) = parse_balance(value) {
        assert_eq!(parse_balance(&Value::from(balance.to_string().as_str())), Some(balance));
    }
}
