//! Clients that cheat, against real replicas: what they leave is finished, and nobody else is harmed.

use std::fs;

use bezant_client::cheating::{self, Cheating, ClientStrategy};
use client::Error;
use rustix::process::Signal;

use crate::place::{Place, eventually};

const REPLICAS: [&str; 6] = ["s0-r0", "s0-r1", "s0-r2", "s0-r3", "s0-r4", "s0-r5"];

/// Connects as the second client, which does this with everything, writes `key`, and is gone.
fn leave(place: &Place, strategy: ClientStrategy, key: &str) {
    let config = bezant_client::load(place.path("bezant-data/client-2")).expect("it was made with two clients");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let cheat = cheating::connect(config, Cheating { strategy, share: 1.0, seed: 1 }).await.expect("it is a member");
        let transaction = cheat.begin();
        transaction.get(key).await.expect("it reads as anybody does");
        transaction.put(key, "left");
        let end = transaction.commit().await;
        assert!(matches!(end, Err(Error::OutcomeUnknown { .. })), "{end:?}");
        assert_eq!(cheating::deeds(&cheat).abandoned(), 1);
        cheat.close().await;
    });
}

/// Nobody but the replicas is there to do it.
#[test]
fn what_a_client_left_behind_is_finished_by_the_replicas_alone() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    for (strategy, key) in [(ClientStrategy::StallEarly, "early"), (ClientStrategy::StallLate, "late")] {
        let committed: Vec<u64> = REPLICAS.iter().map(|replica| place.count(replica, "committed")).collect();
        let finished = || REPLICAS.iter().map(|replica| place.count(replica, "finished_for_others")).sum::<u64>();
        let before = finished();
        leave(&place, strategy, key);
        eventually("every replica has learned that it committed", || {
            REPLICAS.iter().zip(&committed).all(|(replica, before)| place.count(replica, "committed") > *before)
        });
        assert!(finished() > before, "one of them did it");
        assert!(REPLICAS.iter().all(|replica| place.count(replica, "undecided") == 0));
        place.run(&["get", key]).expect(0).prints("left\n");
    }
}

/// Transfers among few accounts, by some that keep to the rules and as many that do not: no money is lost, nor a transfer that
/// was acknowledged, and nothing stays undecided.
#[test]
fn no_money_is_lost_among_clients_that_cheat() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    for strategy in ["stall-early", "stall-late", "equiv-real", "equiv-split"] {
        let journal = format!("journal-{strategy}");
        let options = ["--keys", "40", "--clients", "6", "--seconds", "3600", "--warmup", "0", "--check-interval", "0.2", "--json"];
        let cheats = ["--byzantine-clients", "0.5", "--strategy", strategy, "--journal", &journal];
        let bank = place.spawn(&[&["bench", "bank"], options.as_slice(), cheats.as_slice()].concat());
        let acknowledged = || fs::read(place.path(&journal)).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count();
        eventually("transfers go on", || acknowledged() > 30);
        bank.signal(Signal::INT);
        let report = bank.wait().expect(0).json();
        assert_eq!(report["invariant"]["held"], true, "{report}");
        assert!(report["byzantine"]["faulty"].as_u64() > Some(0), "{report}");
        assert!(report["byzantine"]["settled_seconds"].is_number(), "something stayed undecided: {report}");
        let check = place.run(&["bench", "bank", "--verify-journal", &journal, "--json"]).expect(0).json();
        assert_eq!(check["invariant"]["held"], true, "{check}");
    }
}

#[test]
fn replicas_as_they_are_do_not_let_a_client_equivocate_whenever_it_likes() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    let forced = ["bench", "rw-u", "--keys", "100", "--byzantine-clients", "0.5", "--strategy", "equiv-forced"];
    place.run(&forced).expect(2).says("equiv-forced needs replicas that log a decision whatever the votes are");
    leave(&place, ClientStrategy::EquivocateForced, "forced");
    eventually("it has ended all the same", || REPLICAS.iter().all(|replica| place.count(replica, "committed") > 0));
    let elected: u64 = REPLICAS.iter().map(|replica| place.count(replica, "elected")).sum();
    assert_eq!(elected, 0, "nobody wrote down what no votes justified, so nothing had to be reconciled");
}
