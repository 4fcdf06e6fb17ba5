//! What happens to replicas: they are killed, stay away, lose their data, get other keys, and are replaced. No more than `f` are weak at once: the next is
//! touched when all are whole again.

use std::fs;
use std::net::TcpListener;

use random::Random;
use rustix::process::Signal;
use types::ReplicaId;

use bezant::failure::{Attempt as _, Failure};

use super::cluster::with_field;
use super::{Shared, digest};

/// How long it is waited between two faults, in milliseconds.
const PAUSE_MS: (u64, u64) = (1_000, 6_000);
/// How long a replica that was killed stays down, and how long one that is away, in milliseconds.
const DOWN_MS: (u64, u64) = (0, 5_000);
const AWAY_MS: (u64, u64) = (10_000, 40_000);
/// How long a replica may take to be whole again, beside what it must be silent for, in seconds.
const WHOLE_SECONDS_MAX: u64 = 240;
/// How long after the end of faults the fast path may take to come back, in seconds.
const FAST_SECONDS_MAX: u64 = 60;

/// What may happen to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// `kill -9`, and a start a little later.
    Kill,
    /// Stopped in good order, and away for longer.
    Away,
    /// `kill -9`, its data deleted, and rebuilt.
    Wipe,
    /// Another key, and with it another certificate, on the same disk.
    Rotate,
    /// Another machine in its place, with another key, another address and an empty disk.
    Replace,
}

/// In which order, is drawn. Killing is cheap, and comes more often.
const FAULTS: [Fault; 7] = [Fault::Kill, Fault::Kill, Fault::Kill, Fault::Away, Fault::Wipe, Fault::Rotate, Fault::Replace];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Away => "away",
            Self::Wipe => "data_deleted",
            Self::Rotate => "keys_and_certificates_renewed",
            Self::Replace => "replaced",
        }
    }
}

/// Lets one thing happen after another until the run ends.
pub fn run(shared: &Shared, seed: u64) -> Result<(), Failure> {
    let mut random = Random::stream(seed, "faults");
    let mut deck: Vec<Fault> = Vec::new();
    for number in 0_u64.. {
        shared.pause(random.between(PAUSE_MS.0, PAUSE_MS.1))?;
        if shared.is_over() {
            break;
        }
        // Each comes before any comes again.
        let fault = deck.pop().unwrap_or_else(|| {
            deck = FAULTS.to_vec();
            random.shuffle(&mut deck);
            deck.pop().expect("there are some")
        });
        let replicas: Vec<ReplicaId> = shared.cluster.replicas()?.into_keys().collect();
        let replica = random.pick(&replicas);
        shared.begin(fault.name(), replica);
        let done = strike(shared, fault, replica, &mut random, number).and_then(|()| {
            is_whole_again(shared, fault.name(), replica)?;
            if matches!(fault, Fault::Wipe | Fault::Replace) { digest::compare(shared) } else { Ok(()) }
        });
        shared.finish();
        match done {
            Ok(()) => shared.count(fault.name(), 1),
            Err(failure) if shared.is_stopped() => return Err(failure),
            Err(failure) => {
                // Whoever is not whole must not be joined by another.
                shared.violated(format!("{} {replica}: {failure}", fault.name()));
                return Ok(());
            }
        }
    }
    Ok(())
}

fn strike(shared: &Shared, fault: Fault, replica: ReplicaId, random: &mut Random, number: u64) -> Result<(), Failure> {
    let cluster = &shared.cluster;
    match fault {
        Fault::Kill => {
            cluster.end(replica, Signal::KILL)?;
            cluster.pause(random.between(DOWN_MS.0, DOWN_MS.1))?;
            cluster.up()
        }
        Fault::Away => {
            let away_ms = random.between(AWAY_MS.0, AWAY_MS.1).min(shared.whole_ms() / 4);
            stay_away(shared, replica, away_ms)
        }
        Fault::Wipe => wipe(shared, replica),
        Fault::Rotate => rotate(shared, replica, number),
        Fault::Replace => replace(shared, replica, number),
    }
}

fn stay_away(shared: &Shared, replica: ReplicaId, milliseconds: u64) -> Result<(), Failure> {
    shared.cluster.end(replica, Signal::TERM)?;
    shared.cluster.pause(milliseconds)?;
    shared.cluster.up()
}

fn wipe(shared: &Shared, replica: ReplicaId) -> Result<(), Failure> {
    let (cluster, folder) = (&shared.cluster, shared.cluster.member(&replica.to_string()));
    cluster.end(replica, Signal::KILL)?;
    let data = folder.join("data");
    fs::remove_dir_all(&data).attempt("remove the folder", data.display())?;
    cluster.must(&["rebuild", &folder.display().to_string()])?;
    cluster.up()
}

fn rotate(shared: &Shared, replica: ReplicaId, number: u64) -> Result<(), Failure> {
    let (cluster, folder) = (&shared.cluster, shared.cluster.member(&replica.to_string()));
    let (key, public) = cluster.draw_key(&format!("{replica}-{number}"), &["--replica", "127.0.0.1:1"])?;
    // Now and then the key is there first, and the replica goes on with it; else it stops as soon as it hears of the change.
    let waits = number.is_multiple_of(2);
    let put = || cluster.must(&["key", "use", &key, &folder.display().to_string(), "--rotate"]);
    if waits {
        put()?;
    }
    shared.change(|text| with_field(text, &entry(replica), "public_key", &format!("\"{public}\"")))?;
    if waits {
        return cluster.wait("it has taken the key that waited", replica, 60, || !folder.join("key.next").exists());
    }
    cluster.has_ended(replica)?;
    put()?;
    cluster.up()
}

fn replace(shared: &Shared, replica: ReplicaId, number: u64) -> Result<(), Failure> {
    let (cluster, folder) = (&shared.cluster, shared.cluster.member(&replica.to_string()));
    // Taken by nobody until the new holder starts, one may hope: these are ports that the system hands out to whoever asks for any.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).attempt("find a port", "127.0.0.1")?;
    let (key, public) = cluster.draw_key(&format!("{replica}-{number}"), &["--replica", &free.to_string()])?;
    shared.change(|text| {
        let moved = with_field(text, &entry(replica), "address", &format!("\"{free}\""))?;
        with_field(&moved, &entry(replica), "public_key", &format!("\"{public}\""))
    })?;
    cluster.has_ended(replica)?;
    fs::remove_dir_all(&folder).attempt("remove the folder", folder.display())?;
    let (folder, place, listen) = (folder.display().to_string(), cluster.path("cluster"), free.to_string());
    let mut words = vec!["config", "join", &key, &folder, "--cluster", &place, "--listen", &listen];
    words.extend(cluster.settings());
    cluster.must(&words)?;
    cluster.up()
}

/// The line that a replica's entry in a configuration has.
fn entry(replica: ReplicaId) -> String {
    format!("name = \"{replica}\"")
}

/// Waits until a replica serves again and lacks nothing.
fn is_whole_again(shared: &Shared, what: &str, replica: ReplicaId) -> Result<(), Failure> {
    let http = shared.cluster.replicas()?.remove(&replica).ok_or_else(|| Failure::failed("it has no place any more").at(replica))?;
    let begun = shared.active_seconds();
    let seconds = WHOLE_SECONDS_MAX + shared.whole_ms() / 1_000;
    let whole = shared.cluster.wait("it serves, and lacks nothing", replica, seconds, || shared.cluster.is_whole(replica, &http));
    if whole.is_err() && !shared.is_stopped() {
        let status = shared.cluster.status(replica, &http).unwrap_or_default();
        return whole.map_err(|failure| Failure::failed(format!("{failure}; it says {}, {}", status["state"], status["catch_up"])));
    }
    shared.say(&format!("{replica}, {what}: whole again after {} s", shared.active_seconds() - begun));
    whole
}

/// The whole drill, as often as asked for: one replica is stopped for as long as asked for, another loses its data afterwards, both while the load goes on; the fast path
/// comes back, and all six hold the same. Then two others.
pub fn run_rounds(shared: &Shared, rounds: u64, away_seconds: u64, seed: u64) -> Result<(), Failure> {
    let mut random = Random::stream(seed, "rounds");
    let mut order: Vec<ReplicaId> = Vec::new();
    for round in 1..=rounds {
        if order.len() < 2 {
            order = shared.cluster.replicas()?.into_keys().collect();
            random.shuffle(&mut order);
        }
        let (Some(away), Some(wiped)) = (order.pop(), order.pop()) else { return Err(Failure::wrong("there are too few replicas")) };
        let done = (|| {
            shared.begin("away", away);
            stay_away(shared, away, away_seconds * 1_000)?;
            is_whole_again(shared, "away", away)?;
            shared.finish();
            shared.begin("data_deleted", wiped);
            wipe(shared, wiped)?;
            is_whole_again(shared, "data_deleted", wiped)?;
            shared.finish();
            fast_again(shared)?;
            digest::compare(shared)
        })();
        shared.finish();
        match done {
            Ok(()) => {
                shared.count("rounds", 1);
                shared.say(&format!("round {round} of {rounds} is done"));
            }
            Err(failure) if shared.is_stopped() => return Err(failure),
            Err(failure) => {
                shared.violated(format!("round {round} ({away} away, {wiped} wiped): {failure}"));
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Waits until transactions take the fast path again.
pub fn fast_again(shared: &Shared) -> Result<(), Failure> {
    let begun = shared.active_seconds();
    let mut best = 0.0_f64;
    while shared.active_seconds() - begun <= FAST_SECONDS_MAX {
        let rate = shared.fast_path_rate_since(begun);
        if rate.is_some_and(|rate| rate >= shared.fast_path) {
            let seconds = shared.active_seconds() - begun;
            shared.longest("fast_path_back_within_ms", std::time::Duration::from_secs(seconds));
            return Ok(());
        }
        best = best.max(rate.unwrap_or(0.0));
        shared.pause(500)?;
    }
    Err(Failure::failed(format!(
        "the fast path is not back within {FAST_SECONDS_MAX} s: at best {best:.3} of five seconds' transactions took it, and {} was asked for",
        shared.fast_path
    )))
}
