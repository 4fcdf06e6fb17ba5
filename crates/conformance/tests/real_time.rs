//! Order in real time, by what honest clients see alone.
//!
//! Each rule about time and order is broken, one at a time, and one checker is listened to, which knows no timestamp and no message: `strict`, over
//! what honest clients did, what they were told, and when. Clocks are off by as much as the protocol allows for, and by four times as much.

use conformance::basil::{Report, Scenario};
use mutants::{Mutant, breaking};
use simulator::{Tracing, run, run_watched_by};

/// A small world, in which clients write few keys blindly and read them.
const WORLD: &str = "shards=1 faults=1 plans=blind+peek late=2/3000 lost=0 doubled=0 verifiers=shared";
/// Replicas and clients in one room, and in two towns.
const NEAR: &str = "delay-us=80..250";
const FAR: &str = "delay-us=8000..12000";

fn scenario(words: &[&str]) -> Scenario {
    let scenario = Scenario::named("clocks").expect("it is one of ours");
    scenario.with(&[&[WORLD][..], words].concat().join(" ")).expect("the words are good")
}

/// In one of so many seeds honest clients notice that the rule is broken. With no rule broken nobody notices anything in that run.
fn is_noticed(mutant: Mutant, seeds_max: u64, words: &[&str]) {
    let scenario = scenario(words);
    let seen = |seed: &u64| -> Report { breaking(mutant, || run_watched_by("strict", &scenario, *seed, Tracing::Off)) };
    let seed = (1..=seeds_max).find(|seed| !seen(seed).is_clean()).unwrap_or_else(|| panic!("nobody noticed {mutant:?}"));
    println!("{mutant:?}: seed {seed}");
    let whole = run(&scenario, seed, Tracing::Off);
    assert!(whole.is_clean(), "{whole}");
    assert!(whole.counts.committed > 20, "too little was tried: {whole}");
}

#[test]
fn a_client_that_goes_by_its_own_clock_reads_what_was_overwritten() {
    is_noticed(Mutant::OwnClock, 8, &[NEAR, "clients=4 clocks=skewed fault-kinds=none fault-phase-ms=2000"]);
}

#[test]
fn a_client_that_goes_by_the_lowest_clock_is_held_back_by_a_machine_that_was_paused() {
    is_noticed(Mutant::LowestClock, 8, &[NEAR, "clients=4 fault-kinds=clock-jump clock-good-ms=500 fault-phase-ms=3000"]);
}

/// Its first write is acknowledged early, and what others write later is hidden under it.
#[test]
fn a_write_of_a_client_that_is_ahead_of_time_hides_what_is_written_later() {
    is_noticed(Mutant::EarlyVote, 40, &[NEAR, "clients=4 fault-kinds=slow-client clock-good-ms=500 fault-phase-ms=4000"]);
}

/// The same where replicas wait for what is ahead by little, and refuse what is ahead by more. Bounds that are good for long let a client go on ahead
/// of time when its messages are quick again.
#[test]
fn a_write_further_ahead_of_time_than_is_waited_for_hides_what_is_written_later() {
    let words = "clients=4 fault-kinds=slow-client time-bound-ms=20 clock-good-ms=4000 fault-phase-ms=4000";
    is_noticed(Mutant::FutureEntered, 12, &[NEAR, words]);
}

#[test]
fn replicas_that_all_start_again_with_clocks_behind_show_what_was_overwritten() {
    is_noticed(Mutant::ClockSetBack, 12, &[FAR, "clients=3 fault-kinds=set-clocks+cut-power clock-good-ms=500 fault-phase-ms=16000"]);
}

#[test]
fn replicas_that_serve_at_once_meet_clients_who_rely_on_their_earlier_clocks() {
    is_noticed(Mutant::ServesAtOnce, 40, &[NEAR, "clients=8 fault-kinds=set-clocks+cut-power clock-good-ms=2000 fault-phase-ms=12000"]);
}

/// It has heard of no clock for too long, and then of all of them. A replica that starts votes down what lies up to a time bound ahead, so that a
/// short one leaves more to be read.
#[test]
fn a_client_that_goes_on_with_what_it_began_by_old_clocks_reads_what_was_overwritten() {
    let faults = "fault-kinds=slow-client+set-clocks+cut-power+repair fault-phase-ms=15000";
    let words = format!("clients=3 timeout-ms=1000 time-bound-ms=200 clock-good-ms=200 {faults}");
    is_noticed(Mutant::StepUnnoticed, 40, &[FAR, &words]);
}
