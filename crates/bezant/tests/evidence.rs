//! Lies told to real replicas: what they keep of them, and who can check it with what.

use std::fs;
use std::path::PathBuf;

use basil::certificate::{LoggedStatement, SignedLogged, SignedVote, VoteStatement};
use basil::{Decision, Message, Read, Transaction, Vote, Write};
use crypto::{BatchSigner, Statement, leaf};
use runtime::frame::{Frames, Greeting, Role};
use serde_json::Value as Json;
use types::{ClientId, Key, ReplicaId, Session, ShardId, Timestamp, TransactionId, Value};

use crate::place::{Place, eventually};
use crate::raw::{Raw, Shows};

/// Who lies. It has the greatest name, so that it dials all others.
const LIAR: ReplicaId = ReplicaId { shard: ShardId(0), index: 5 };

/// Says these messages to a replica, as the member whose folder this is, and leaves.
fn say(place: &Place, to: &str, member: &str, role: Role, messages: &[Message]) {
    let topology = bezant_client::load(place.path("bezant-data")).expect("made").topology;
    let configuration = runtime::Configuration::of(&topology.cluster, topology.signatures, topology.chain.version());
    let mut raw = Raw::connect(place.address(to, "address"), Shows::member(&place.path("bezant-data").join(member)));
    raw.send(&Greeting::Hello { cluster: topology.cluster.id(), configuration, role }.to_frame());
    assert_eq!(raw.greeting(), Some(Greeting::Welcome(configuration)), "{member} at {to}");
    let mut frames = Frames::default();
    messages.iter().for_each(|message| assert!(frames.add(message), "it is short"));
    frames.finish();
    raw.send(frames.bytes());
    eventually("it is kept", || !kept(place, to).is_empty());
}

/// The files that a replica keeps as evidence.
fn kept(place: &Place, replica: &str) -> Vec<PathBuf> {
    let folder = place.path("bezant-data").join(replica).join("evidence");
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
}

/// What the liar signs.
fn signed<S: Statement>(place: &Place, statement: &S) -> crypto::BatchSignature {
    let topology = bezant_client::load(place.path("bezant-data")).expect("made").topology;
    let secret = runtime::tls::read_private_key(&place.path("bezant-data").join(LIAR.to_string()).join("key")).expect("its key");
    let signer = BatchSigner::new(secret, topology.cluster.id(), LIAR, topology.signatures);
    signer.sign(&[leaf(topology.cluster.id(), LIAR, statement)]).remove(0)
}

fn voted(place: &Place, vote: Vote) -> Message {
    let statement = VoteStatement { id: TransactionId([7; 32]), vote };
    Message::Voted { vote: SignedVote { replica: LIAR, statement, signature: signed(place, &statement) }, conflict: None }
}

fn logged(place: &Place, decision: Decision) -> Message {
    let statement = LoggedStatement { id: TransactionId([8; 32]), decision, view_decision: 0, view_current: 2 };
    Message::Logged { logged: SignedLogged { replica: LIAR, statement, signature: signed(place, &statement) } }
}

/// A transaction of client 2 that has read what was written after it.
fn from_the_future(place: &Place) -> Message {
    let topology = bezant_client::load(place.path("bezant-data")).expect("made").topology;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let read = Read { key: Key::from("a"), version: Timestamp::new(now + 9, ClientId(1)), dependency: None };
    let write = Write { key: Key::from("b"), value: Some(Value::from("1")) };
    let timestamp = Timestamp::new(now, ClientId(2));
    Message::Prepare { transaction: Transaction::new(topology.cluster.id(), timestamp, vec![read], vec![write]).expect("small") }
}

/// The one file of evidence that this replica keeps, with one byte of its proof changed, as another file.
fn tampered(place: &Place, replica: &str) -> String {
    let mut record: Json = serde_json::from_str(&fs::read_to_string(&kept(place, replica)[0]).expect("kept")).expect("JSON");
    let proof = record["proof"].as_str().expect("it is signed").to_owned();
    // The last byte belongs to a signature.
    let (rest, last) = proof.split_at(proof.len() - 2);
    let last = u8::from_str_radix(last, 16).expect("digits") ^ 1;
    record["proof"] = Json::from(format!("{rest}{last:02x}"));
    let name = format!("tampered-{replica}.json");
    fs::write(place.path(&name), record.to_string()).expect("written");
    name
}

#[test]
fn a_replica_that_equivocates_leaves_evidence_that_anybody_can_check() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    place.run(&["evidence", "bezant-data/s0-r0"]).expect(0).prints("nobody was ever seen to lie here\n");
    place.kill("s0-r5");
    eventually("it has ended", || place.ask("s0-r5", "/health").is_none());
    say(&place, "s0-r0", "s0-r5", Role::Replica, &[voted(&place, Vote::Commit), voted(&place, Vote::Abort)]);
    say(&place, "s0-r1", "s0-r5", Role::Replica, &[logged(&place, Decision::Abort), logged(&place, Decision::Commit)]);
    // Nobody is there any more who could be asked.
    place.run(&["down"]).expect(0);
    fs::create_dir(place.path("elsewhere")).expect("made");
    fs::copy(place.path("bezant-data/cluster.toml"), place.path("elsewhere/cluster.toml")).expect("copied");
    for (replica, what) in
        [("s0-r0", "a vote to commit and a vote to abort"), ("s0-r1", "had logged one transaction to commit and to abort")]
    {
        let listed = place.run(&["evidence", &format!("bezant-data/{replica}")]).expect(1);
        assert!(listed.out.contains(what) && listed.out.contains("proven by its signatures, by the keys of configuration 0"), "{listed:?}");
        let file = kept(&place, replica)[0].display().to_string();
        let shown = place.run(&["evidence", &file, "--cluster", "elsewhere", "--json"]).expect(1).json();
        let shown = &shown["evidence"][0];
        assert_eq!((&shown["who"], &shown["proven_by_configuration"]), (&Json::from("s0-r5"), &Json::from(0)), "{shown}");

        let file = tampered(&place, replica);
        let refuted = place.run(&["evidence", &file, "--cluster", "elsewhere"]).expect(2);
        assert!(refuted.out.contains("its signatures prove nothing: "), "{refuted:?}");
        refuted.says("1 of 1 pieces of evidence prove nothing");
        let shown = place.run(&["evidence", &file, "--cluster", "elsewhere", "--json"]).expect(2).json();
        assert!(shown["evidence"][0]["refuted"].as_str().is_some_and(|why| why.contains("signature")), "{shown}");
        // The same signatures do not speak against another.
        let text = fs::read_to_string(&kept(&place, replica)[0]).expect("kept").replace("s0-r5", "s0-r4");
        fs::write(place.path("other.json"), text).expect("written");
        let refuted = place.run(&["evidence", "other.json", "--cluster", "elsewhere"]).expect(2);
        assert!(refuted.out.contains("they are about something else than the file says"), "{refuted:?}");
    }
}

/// The public key of an operator.
fn operator(place: &Place, name: &str) -> String {
    hex::encode(runtime::tls::read_private_key(&place.path("bezant-data").join(name).join("key")).expect("its key").public())
}

#[test]
fn operators_who_sign_two_configurations_of_one_version_leave_evidence_that_anybody_can_check() {
    let place = Place::new();
    place.init(&["--clients", "3", "--operators", "3"]);
    place.run(&["up"]).expect(0);
    // The second operator signs both, as its note of the first is gone.
    for (client, by) in [("2", ["operator", "operator-2"]), ("3", ["operator-2", "operator-3"])] {
        place.run(&["config", "propose", "--revoke-client", client, "--out", client]).expect(0);
        for by in by {
            place.run(&["config", "sign", client, "--key", &format!("bezant-data/{by}")]).expect(0);
        }
        fs::remove_file(place.path("bezant-data/operator-2/signed")).expect("it has signed");
    }
    // One replica learns of the one while it is down, the others of the other.
    place.kill("s0-r5");
    eventually("it has ended", || place.ask("s0-r5", "/health").is_none());
    place.run(&["config", "apply", "3", "--offline", "--cluster", "bezant-data/s0-r5"]).expect(0);
    place.run(&["config", "apply", "2", "--seconds", "1"]).expect(0).prints("configuration 1: 5 of 6 replicas go by it\n");
    place.run(&["up"]).expect(0);
    for replica in ["s0-r0", "s0-r5"] {
        eventually("it keeps the proof", || !kept(&place, replica).is_empty());
        let status: Json = serde_json::from_str(&place.ask(replica, "/status").expect("it runs")).expect("JSON");
        assert_eq!(status["misbehaviors"], Json::from(1), "{status}");
    }
    // Whoever comes back with the same adds nothing.
    place.kill("s0-r5");
    eventually("it has ended", || place.ask("s0-r5", "/health").is_none());
    place.run(&["up"]).expect(0);
    let hears_of_it = || place.ask("s0-r5", "/metrics").is_some_and(|metrics| metrics.contains("bezant_misbehaviors_total 1"));
    eventually("it hears of it again", hears_of_it);
    place.run(&["down"]).expect(0);
    fs::create_dir(place.path("elsewhere")).expect("made");
    fs::copy(place.path("bezant-data/cluster.toml"), place.path("elsewhere/cluster.toml")).expect("copied");
    let signed = format!("operators: these signed two configurations of version 1: {}\n", operator(&place, "operator-2"));
    for replica in ["s0-r0", "s0-r5"] {
        assert_eq!(kept(&place, replica).len(), 1, "{replica}");
        let listed = place.run(&["evidence", &format!("bezant-data/{replica}")]).expect(1);
        assert!(
            listed.out.contains(&signed) && listed.out.contains("proven by its signatures, by the keys of configuration 0"),
            "{listed:?}"
        );
        let file = kept(&place, replica)[0].display().to_string();
        let shown = place.run(&["evidence", &file, "--cluster", "elsewhere", "--json"]).expect(1).json();
        assert_eq!(shown["evidence"][0]["proven_by_configuration"], Json::from(0), "{shown}");
        let tampered = tampered(&place, replica);
        let refuted = place.run(&["evidence", &tampered, "--cluster", "elsewhere"]).expect(2);
        assert!(refuted.out.contains("its signatures prove nothing: the signature of operator"), "{refuted:?}");
        // The same signatures do not speak against another.
        let mut other: Json = serde_json::from_str(&fs::read_to_string(&file).expect("kept")).expect("JSON");
        let what = other["what"].as_str().expect("in words").replace(&operator(&place, "operator-2"), &operator(&place, "operator-3"));
        other["what"] = Json::from(what);
        fs::write(place.path("other.json"), other.to_string()).expect("written");
        let refuted = place.run(&["evidence", "other.json", "--cluster", "elsewhere"]).expect(2);
        assert!(refuted.out.contains("they are about something else than the file says"), "{refuted:?}");
    }
}

#[test]
fn a_client_that_lies_is_refused_by_who_heard_it_until_that_is_lifted() {
    let place = Place::new();
    place.init(&["--clients", "2"]);
    place.run(&["up"]).expect(0);
    say(&place, "s0-r0", "client-2", Role::Client(Session(7)), &[from_the_future(&place)]);
    let listed = place.run(&["evidence", "bezant-data/s0-r0"]).expect(1);
    assert!(listed.out.contains("c2: this client claims to have read from its own future"), "{listed:?}");
    assert!(listed.out.contains("not signed") && listed.out.contains("c2: refused here as long as it has that key"), "{listed:?}");
    // One replica refuses it; the others have heard nothing. The fast path takes all six.
    place.run(&["put", "a", "1", "--cluster", "bezant-data/client-2"]).expect(0).says("over the slow path");
    place.run(&["put", "a", "2"]).expect(0);
    place.run(&["down"]).expect(0);
    place.run(&["evidence", "bezant-data/s0-r0", "--lift", "c2"]).expect(0);
    place.run(&["up"]).expect(0);
    eventually("all six take it in again", || {
        place.run(&["put", "a", "3", "--cluster", "bezant-data/client-2"]).err.contains("over the fast path")
    });
}

#[test]
fn a_replica_starts_with_evidence_that_cannot_be_read_and_the_command_names_the_file() {
    let place = Place::new();
    place.init(&[]);
    let folder = place.path("bezant-data/s0-r0/evidence");
    fs::create_dir(&folder).expect("made");
    fs::write(folder.join("lie-1-c1-0.json"), "{\"time_ms\": 1, \"who").expect("written");
    place.run(&["up"]).expect(0);
    place.run(&["put", "a", "1"]).expect(0).says("by 6 of 6 replicas");
    let listed = place.run(&["evidence", "bezant-data/s0-r0"]).expect(1);
    assert!(listed.out.contains("lie-1-c1-0.json: it cannot be read, and counts for nothing"), "{listed:?}");
    let shown = place.run(&["evidence", "bezant-data/s0-r0", "--json"]).expect(1).json();
    assert!(shown["unreadable"][0]["file"].as_str().is_some_and(|file| file.ends_with("lie-1-c1-0.json")), "{shown}");
}
