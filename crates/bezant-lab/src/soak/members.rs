//! Changes of who may do what while all goes on: clients that are added, limited, given other keys, and taken out again.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use random::Random;

use bezant::failure::{Attempt as _, Failure};

use super::Shared;
use super::cluster::with_field;
use super::visitor::Visitor;

/// How long it is waited between two changes, in milliseconds.
const PAUSE_MS: (u64, u64) = (2_000, 8_000);
/// The first number that a client gets who is added.
const FIRST_NUMBER: u64 = 100;
/// How often something that a change is to bring about is tried before it counts as a violation.
const TRIES_MAX: usize = 40;
/// What a client hears that was taken out: by itself, where it has heard of the change; otherwise by each replica, which tells strangers nothing.
const TAKEN_OUT: [&str; 2] = ["was taken out of the cluster", "is not a member of cluster"];

/// How soon after `config apply` every replica has closed each connection of who was taken out, in milliseconds. It is what is promised, and nothing is added for
/// a machine whose cores are all busy: half a second goes to the farewell, a few steps are all else that there is to do, and an hour of this on two cores, at half of
/// what they could do, told who was taken out within 1.3 s, with the start of a process.
const CUT_OFF_MS_MAX: u64 = 2_000;
/// How often that is looked at; what took longer between two looks was a pause of the whole run, of which no more counts.
const LOOK_MS: u64 = 20;
const LOOK_MS_MAX: u64 = 1_000;
/// How long it is looked for before that is given up, in milliseconds.
const NEVER_CUT_OFF_MS: u64 = 60_000;
/// How long a client gets to connect to all replicas, in milliseconds: one of them may be down.
const CONNECT_MS: u64 = 3_000;

/// A client that was added.
struct Guest {
    number: u64,
    /// How often its key was changed.
    keys: u64,
    is_limited: bool,
    is_narrow: bool,
}

impl Guest {
    fn name(&self) -> String {
        format!("client-{}", self.number)
    }

    /// The line that its entry in a configuration has.
    fn entry(&self) -> String {
        format!("number = {}", self.number)
    }
}

/// Changes one thing after another until the run ends.
pub fn run(shared: &Shared, seed: u64) -> Result<(), Failure> {
    let mut random = Random::stream(seed, "members");
    let (mut guest, mut next): (Option<Guest>, u64) = (None, FIRST_NUMBER);
    while !shared.is_over() {
        shared.pause(random.between(PAUSE_MS.0, PAUSE_MS.1))?;
        if shared.is_over() {
            break;
        }
        let choice = random.below(4);
        let (what, done) = match &mut guest {
            None => {
                let new = Guest { number: next, keys: 0, is_limited: false, is_narrow: false };
                next += 1;
                let done = add(shared, &new);
                guest = Some(new);
                ("clients_added", done)
            }
            Some(there) if choice == 0 => ("client_keys_renewed", rotate(shared, there)),
            Some(there) if choice == 1 && !there.is_limited => ("limits_changed", limit(shared, there)),
            Some(there) if choice == 2 && !there.is_narrow => ("rights_changed", narrow(shared, there)),
            Some(there) => {
                let done = revoke(shared, there);
                guest = None;
                ("clients_revoked", done)
            }
        };
        match done {
            Ok(()) => shared.count(what, 1),
            Err(failure) if shared.is_stopped() => return Err(failure),
            Err(failure) => shared.violated(format!("{what}: {failure}")),
        }
    }
    Ok(())
}

fn add(shared: &Shared, guest: &Guest) -> Result<(), Failure> {
    let (cluster, name) = (&shared.cluster, guest.name());
    let (key, public) = cluster.draw_key(&name, &["--client"])?;
    let entry = format!("\n[[client]]\n{}\npublic_key = \"{public}\"\nread = [\"\"]\nwrite = [\"\"]\n", guest.entry());
    shared.change(|text| Ok(format!("{}{entry}", text.trim_end().to_owned() + "\n")))?;
    let folder = cluster.member(&name).display().to_string();
    cluster.must(&["config", "join", &key, &folder, "--cluster", &cluster.path("cluster")])?;
    writes(shared, guest)
}

/// Another key, and with it another certificate.
fn rotate(shared: &Shared, guest: &mut Guest) -> Result<(), Failure> {
    let (cluster, name) = (&shared.cluster, guest.name());
    guest.keys += 1;
    let (key, public) = cluster.draw_key(&format!("{name}-{}", guest.keys), &["--client"])?;
    shared.change(|text| with_field(text, &guest.entry(), "public_key", &format!("\"{public}\"")))?;
    let folder = cluster.member(&name);
    // The client does not run: its folder has not heard of the change.
    let from = cluster.member("configurations");
    fs::copy(&from, folder.join("configurations")).attempt("copy the file", from.display())?;
    cluster.must(&["key", "use", &key, &folder.display().to_string(), "--rotate"])?;
    writes(shared, guest)
}

fn limit(shared: &Shared, guest: &mut Guest) -> Result<(), Failure> {
    shared.change(|text| with_field(text, &guest.entry(), "keys_max", "2"))?;
    guest.is_limited = true;
    let folder = shared.cluster.member(&guest.name()).display().to_string();
    let large = ["txn", "put soak/a 1; put soak/b 2; put soak/c 3", "--cluster", &folder];
    refused(shared, &large, &["keys_max"])?;
    writes(shared, guest)
}

/// From now on it may write and read what begins with `soak/`, and nothing else.
fn narrow(shared: &Shared, guest: &mut Guest) -> Result<(), Failure> {
    shared.change(|text| {
        let text = with_field(text, &guest.entry(), "write", "[\"soak/\"]")?;
        with_field(&text, &guest.entry(), "read", "[\"soak/\"]")
    })?;
    guest.is_narrow = true;
    let folder = shared.cluster.member(&guest.name()).display().to_string();
    refused(shared, &["put", "other", "1", "--cluster", &folder], &["no right to write other"])?;
    refused(shared, &["get", "other", "--cluster", &folder], &["no right to read other"])?;
    refused(shared, &["scan", "a", "z", "--cluster", &folder], &["no right to read all keys from a to z"])?;
    writes(shared, guest)
}

fn revoke(shared: &Shared, guest: &Guest) -> Result<(), Failure> {
    let folder = shared.cluster.member(&guest.name());
    let visitor = connect(shared, &folder)?;
    shared.change(|text| {
        let (mut blocks, mut is_out): (Vec<&str>, bool) = (Vec::new(), false);
        for block in text.split("\n[[") {
            let is_its = block.lines().any(|line| line == guest.entry());
            is_out |= is_its;
            if !is_its {
                blocks.push(block);
            }
        }
        if is_out { Ok(blocks.join("\n[[")) } else { Err(Failure::failed(format!("no entry has {}", guest.entry()))) }
    })?;
    let cut_off_ms = cut_off(shared, &visitor)?;
    drop(visitor);
    let begun = Instant::now();
    refused(shared, &["put", "soak/guest", "late", "--cluster", &folder.display().to_string()], &TAKEN_OUT)?;
    shared.longest("revoked_within_ms", begun.elapsed());
    fs::remove_dir_all(&folder).attempt("remove the folder", folder.display())?;
    if cut_off_ms > CUT_OFF_MS_MAX {
        return Err(Failure::failed(format!(
            "some replica closed its connection {cut_off_ms} ms after it was taken out, and {CUT_OFF_MS_MAX} are allowed"
        ))
        .at(guest.name()));
    }
    Ok(())
}

/// The client of this folder, connected to every replica that there is to connect to.
fn connect(shared: &Shared, folder: &Path) -> Result<Visitor, Failure> {
    let mut visitor = Visitor::start(&shared.cluster, folder)?;
    let (replicas, mut waited_ms) = (shared.cluster.replicas()?.len(), 0);
    while visitor.count()? < replicas && waited_ms < CONNECT_MS {
        shared.pause(100)?;
        waited_ms += 100;
    }
    shared.count("connections_cut_off", visitor.count()? as u64);
    Ok(visitor)
}

/// How long after this is called, in milliseconds, every replica has closed its connection with `visitor`.
fn cut_off(shared: &Shared, visitor: &Visitor) -> Result<u64, Failure> {
    let (mut took, mut last) = (Duration::ZERO, Instant::now());
    loop {
        let open = visitor.open()?;
        took += last.elapsed().min(Duration::from_millis(LOOK_MS_MAX));
        last = Instant::now();
        let took_ms = took.as_millis() as u64;
        if open == 0 {
            shared.longest("cut_off_within_ms", took);
            return Ok(took_ms);
        }
        if took_ms > NEVER_CUT_OFF_MS {
            return Err(Failure::failed(format!("{open} of its connections are open a minute after it was taken out")));
        }
        if shared.is_stopped() {
            return Err(Failure::failed("stopped"));
        }
        sleep(Duration::from_millis(LOOK_MS));
    }
}

/// What it may do, it can.
fn writes(shared: &Shared, guest: &Guest) -> Result<(), Failure> {
    let folder = shared.cluster.member(&guest.name()).display().to_string();
    let mut last = String::new();
    for _ in 0..TRIES_MAX {
        let said = shared.cluster.run(&["put", "soak/guest", "1", "--cluster", &folder])?;
        if said.code == Some(0) {
            return Ok(());
        }
        last = said.why();
        shared.pause(500)?;
    }
    Err(Failure::failed(format!("it may write, and cannot: {last}")).at(guest.name()))
}

/// What it may not do, it cannot, and is told so.
fn refused(shared: &Shared, words: &[&str], whys: &[&str]) -> Result<(), Failure> {
    let mut last = String::new();
    for _ in 0..TRIES_MAX {
        let said = shared.cluster.run(words)?;
        if said.code != Some(0) && whys.iter().any(|why| said.err.contains(why)) {
            return Ok(());
        }
        last = if said.code == Some(0) { "it was done".to_owned() } else { said.why() };
        shared.pause(Duration::from_millis(100).as_millis() as u64)?;
    }
    Err(Failure::failed(format!("expected a refusal that says one of {whys:?}: {last}")).at(words.join(" ")))
}
