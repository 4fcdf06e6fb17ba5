//! The least that a transaction can do and still has to be ordered: each loop client deletes a key of its own that is never there. What it
//! costs is what agreeing on a request costs, without anything to execute.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Client, Operation};
use types::Key;

use crate::{Done, LoopClient, Progress, Readiness, Work, Workload};

/// Transactions that change nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoOp;

impl Workload for NoOp {
    fn name(&self) -> &'static str {
        "no-op"
    }

    fn settings(&self) -> BTreeMap<&'static str, serde_json::Value> {
        BTreeMap::new()
    }

    fn load<'a>(&'a self, _client: &'a Arc<Client>, _progress: Progress<'a>) -> Work<'a, u64> {
        Box::pin(async { Ok(0) })
    }

    fn start<'a>(&'a self, _client: &'a Client, _loop_clients: u32) -> Work<'a, Readiness> {
        Box::pin(async { Ok(Readiness::Filled) })
    }

    fn transact<'a>(&'a self, client: &'a Client, loop_client: &'a mut LoopClient) -> Work<'a, Done> {
        let key = Key::from(format!("no-op/{}", loop_client.index).as_str());
        Box::pin(async move {
            let done = client.run(vec![Operation::Delete(key)]).await?;
            Ok(Done::committed(&done))
        })
    }
}
