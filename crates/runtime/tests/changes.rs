//! The cluster changes while nodes run: who tells whom, what is kept before it is gone by, and who is cut off.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crypto::takeover::Control;
use crypto::{Chain, ChainError, Configuration, Fork, Holder, Operators, SecretKey, Signatures, SignedConfiguration};
use runtime::{ChangeOptions, Limits, Newest, NotTakenOver, PeerState};
use tokio::sync::watch;
use types::codec::Encode as _;
use types::{ClientId, Session};

use crate::fixture::*;

fn operator() -> SecretKey {
    SecretKey::from_bytes([201; 32])
}

/// The toy cluster, and the operator who may change it.
fn chain() -> Chain {
    let cluster = cluster(CLUSTER, 3);
    let holder = |replica| Holder {
        public_key: *cluster.replica_key(replica).expect("it has one"),
        address: "127.0.0.1:1".to_owned(),
        http: "127.0.0.1:2".to_owned(),
    };
    let holders = cluster.shards().map(|shard| cluster.replicas_of(shard).map(holder).collect()).collect();
    let operators = Operators { needed: 1, keys: vec![operator().public()] };
    Chain::new((*cluster).clone(), Configuration::first(&cluster, "toy", Signatures::Ed25519, holders, operators))
}

/// `chain` without that client in its next configuration, by that operator.
fn without(chain: &Chain, client: u64, by: &SecretKey) -> SignedConfiguration {
    let before = chain.newest();
    let mut next = Configuration { version: before.version + 1, previous: chain.digest(), ..before.clone() };
    next.clients.retain(|(other, _)| *other != ClientId(client));
    let mut signed = SignedConfiguration { configuration: next, signatures: Vec::new() };
    match signed.configuration.sign(chain.id(), &before.operators, by) {
        Some(signature) => signed.add(signature),
        None => signed.add((0, by.sign(b"something else"))),
    }
    signed
}

/// A server that may be changed, and what it has kept.
struct Changing {
    server: Server,
    kept: Arc<AtomicU64>,
    disk_is_well: Arc<AtomicBool>,
    order: Arc<Mutex<Vec<u64>>>,
    forks: Arc<Mutex<Vec<Fork>>>,
    _newest: watch::Receiver<Newest>,
}

impl Changing {
    async fn start(index: u16, peers: BTreeMap<types::ReplicaId, std::net::SocketAddr>, chain: Chain) -> Self {
        let (kept, disk_is_well, order) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)), Arc::default());
        let (taken, newest) = watch::channel(Newest::of(chain.clone()));
        let (note, well, log) = (Arc::clone(&kept), Arc::clone(&disk_is_well), Arc::<Mutex<Vec<u64>>>::clone(&order));
        let keep = move |chain: &Chain| {
            if !well.load(Ordering::SeqCst) {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            note.store(chain.version(), Ordering::SeqCst);
            log.lock().expect("nobody panics").push(chain.version());
            Ok(())
        };
        let forks = Arc::<Mutex<Vec<Fork>>>::default();
        let told = Arc::clone(&forks);
        let forked = move |fork: &Fork| told.lock().expect("nobody panics").push(fork.clone());
        let changes = ChangeOptions { chain, keep: Box::new(keep), taken, forked: Box::new(forked) };
        let any = "127.0.0.1:0".parse().expect("an address");
        let server = Server::start_changing(any, Doubler::new(replica(index)), peers, Limits::default(), None, Some(changes)).await;
        Self { server, kept, disk_is_well, order, forks, _newest: newest }
    }

    fn kept(&self) -> u64 {
        self.kept.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_slept_takes_over_all_configurations_in_order_and_a_revoked_client_is_cut_off_everywhere() {
    let zero = Changing::start(0, BTreeMap::new(), chain()).await;
    let mut revoked = Client::start_as(2, Session(1), &cluster(CLUSTER, 3), zero.server.address(), Limits::default());
    // Once it is answered the connection is open at both ends, and only its owner's removal may close it.
    revoked.asks_and_is_answered(6).await;
    let mut stays = Client::start(zero.server.address());
    let mut ahead = chain();
    for _ in 0..9 {
        // More than are handed over at once. The first takes client 2 out, the others change who must sign nothing.
        let next = without(&ahead, 2, &operator());
        ahead.extend(next.clone()).expect("it is signed");
        zero.server.node.handle().take_over(next).expect("it follows");
    }
    assert_eq!(zero.kept(), 9);
    eventually("its connection is closed", || zero.server.metrics.closed("removed") >= 1).await;
    revoked.peers_until(|state| matches!(state, PeerState::Refused(reason) if reason.contains("was removed"))).await;
    stays.asks_and_is_answered(7).await;
    // One that slept through all of it.
    let one = Changing::start(1, BTreeMap::from([(replica(0), zero.server.address())]), chain()).await;
    eventually("it has them all", || one.kept() == 9).await;
    assert_eq!(*one.order.lock().expect("nobody panics"), (1..=9).collect::<Vec<_>>());
    assert_eq!(one.server.node.handle().versions(), BTreeMap::from([(replica(0), 9)]));
    // And from then on, both ways at once.
    let next = without(&ahead, 3, &operator());
    one.server.node.handle().take_over(next).expect("it follows");
    eventually("the other has it", || zero.kept() == 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_that_cannot_be_kept_or_that_nobody_signed_is_not_gone_by() {
    let zero = Changing::start(0, BTreeMap::new(), chain()).await;
    let handle = zero.server.node.handle();
    let client = Client::start_as(2, Session(1), &cluster(CLUSTER, 3), zero.server.address(), Limits::default());
    client.connected().await;
    let forged = without(&chain(), 2, &SecretKey::from_bytes([202; 32]));
    assert!(matches!(handle.take_over(forged), Err(NotTakenOver::Refused(ChainError::BadSignature { .. }))));
    zero.disk_is_well.store(false, Ordering::SeqCst);
    assert!(matches!(handle.take_over(without(&chain(), 2, &operator())), Err(NotTakenOver::NotKept(_))));
    assert_eq!((zero.kept(), zero.server.metrics.closed("removed")), (0, 0));
    zero.disk_is_well.store(true, Ordering::SeqCst);
    handle.take_over(without(&chain(), 2, &operator())).expect("now it can be kept");
    client.peers_until(|state| matches!(state, PeerState::Refused(_))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_go_by_two_configurations_of_one_version_both_come_to_hold_the_proof() {
    let [one, other] = [2, 3].map(|client| {
        let mut chain = chain();
        chain.extend(without(&chain.clone(), client, &operator())).expect("it is signed");
        chain
    });
    let zero = Changing::start(0, BTreeMap::new(), one).await;
    let one = Changing::start(1, BTreeMap::from([(replica(0), zero.server.address())]), other).await;
    for told in [&zero.forks, &one.forks] {
        eventually("it is told", || !told.lock().expect("nobody panics").is_empty()).await;
        let told = told.lock().expect("nobody panics");
        let fork = Fork::verify(&told[0].to_bytes(), &chain()).expect("it proves it to who has neither");
        assert_eq!((told.len(), fork.version(), fork.signers()), (1, 1, &[operator().public()][..]));
    }
    assert_eq!((zero.kept(), one.kept()), (0, 0), "each goes by its own as before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_client_whose_configurations_bring_nothing_few_are_looked_at() {
    let zero = Changing::start(0, BTreeMap::new(), chain()).await;
    let mut elsewhere = without(&chain(), 2, &operator());
    elsewhere.configuration.previous = [7; 32];
    let mut frames = runtime::frame::Frames::default();
    frames.add_control(&Control::Configuration(Box::new(elsewhere)).to_bytes());
    let metrics = &zero.server.metrics;
    for connection in 1..=10 {
        let mut raw = Raw::welcomed(zero.server.address()).await;
        raw.send(frames.bytes()).await;
        raw.send(&messages(&[Message::Ask(1)])).await;
        eventually("it is served", || metrics.to_text().contains(&format!("bezant_statements_signed_total {connection}\n"))).await;
    }
    assert_eq!(metrics.rejected("handed_in_vain"), 2);
    // What others bring is taken over as ever.
    zero.server.node.handle().take_over(without(&chain(), 2, &operator())).expect("it follows");
    assert_eq!(zero.kept(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_hands_over_what_its_own_side_brings_and_nothing_else() {
    // Two replicas that do not know where the other is.
    let zero = Changing::start(0, BTreeMap::new(), chain()).await;
    let one = Changing::start(1, BTreeMap::new(), chain()).await;
    let (taken, mut newest) = watch::channel(Newest::of(chain()));
    let changes = ChangeOptions { chain: chain(), keep: Box::new(|_| Ok(())), taken, forked: Box::new(|_| {}) };
    let replicas = BTreeMap::from([(replica(0), zero.server.address()), (replica(1), one.server.address())]);
    let client = Client::start_changing(replicas, changes);
    let both = |peers: &BTreeMap<_, PeerState>| peers.values().filter(|state| **state == PeerState::Connected).count() == 2;
    within(client.node.handle().peers_until(both)).await;
    let mut ahead = chain();
    for version in 1..=2 {
        let next = without(&ahead, 2, &operator());
        ahead.extend(next.clone()).expect("it is signed");
        zero.server.node.handle().take_over(next).expect("it follows");
        within(newest.wait_for(|newest| newest.chain.version() == version)).await.expect("the client runs");
    }
    // What it says now comes after whatever it has handed over.
    client.node.handle().command(Order::Say(replica(1), Message::Ask(7))).await.expect("the client runs");
    let mut client = client;
    assert!(matches!(within(client.events.recv()).await, Some(Told::Answer(doubled)) if doubled.number == 7));
    assert_eq!(one.kept(), 0);
    // What its own side brings it hands on, though it knows it already.
    for next in ahead.after(0) {
        client.node.handle().take_over(next.clone()).expect("it knows it");
    }
    eventually("the other has them", || one.kept() == 2).await;
}
