//! The tables of TPC-C, from the workload's own file.

#[path = "../../crates/workload/src/tpcc/tables.rs"]
#[expect(dead_code, reason = "only what reading needs is used here")]
pub(crate) mod tables;
