//! How a world is set up.

use std::collections::BTreeMap;
use std::sync::Arc;

use crypto::{BatchSigner, SecretKey, Signatures, Verifier};
use machine::turn::{Bounds, INPUTS_MAX};
use random::Random;
use types::{ClientId, Cluster, ClusterId, Permission, Placement, ReplicaId, ShardId};

use super::{Actor, World, client_id};
use crate::budget::Budget;
use crate::changes::Changes;
use crate::client::ClientActor;
use crate::clock::{Clock, EPOCH_NS};
use crate::faults::{FaultKind, Phase};
use crate::network::Network;
use crate::queue::Queue;
use crate::replica::{Parts, ReplicaActor};
use crate::report::Counts;
use crate::rights::Prefixes;
use crate::scenario::Scenario;
use crate::self_test::BrokenRule;
use crate::setting::{ReplicaFault, Rights, Setting, Verifiers};
use crate::system::{Clients, System};
use crate::trace::{Trace, Tracing};

/// A key that comes from the seed.
pub(crate) fn secret(seed: u64, name: &str) -> SecretKey {
    let mut random = Random::stream(seed, name);
    let mut bytes = [0; 32];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    SecretKey::from_bytes(bytes)
}

/// The clients of a world: the honest ones first, then the Byzantine ones. The auditor comes last, and does nothing before the end.
fn clients<S: System>(setting: &Setting<S>) -> Clients {
    let (honest, byzantine) = (setting.clients, setting.byzantine_clients.len());
    Clients {
        honest: (0..honest).map(client_id).collect(),
        byzantine: (honest..honest + byzantine).map(client_id).collect(),
        auditor: client_id(honest + byzantine),
    }
}

/// A cluster with these public keys, in which every client may read and write everything.
///
/// # Panics
/// When no cluster may be so large.
pub fn cluster(faults: usize, replicas: Vec<Vec<[u8; 32]>>, clients: impl Iterator<Item = (ClientId, [u8; 32])>) -> Arc<Cluster> {
    with_rights(faults, Placement::Hash, replicas, clients.map(|(id, public_key)| (id, Prefixes::all().of(public_key))).collect())
}

fn with_rights(faults: usize, placement: Placement, replicas: Vec<Vec<[u8; 32]>>, clients: Vec<(ClientId, Permission)>) -> Arc<Cluster> {
    let cluster = Cluster::new(ClusterId::new([7; 16]), faults, placement, replicas, clients);
    Arc::new(cluster.expect("such a cluster can be"))
}

impl<S: System> World<S> {
    /// A world for one run. In tests of the checkers one of its rules may be broken.
    pub fn new(scenario: &Scenario<S>, seed: u64, tracing: Tracing, broken: Option<BrokenRule<S::ReplicaStrategy>>) -> Self {
        let setting = Setting::new(scenario, seed);
        let clients = clients(&setting);
        let secrets: Vec<Vec<SecretKey>> = (0..setting.shards)
            .map(|shard| (0..setting.replicas_per_shard()).map(|index| secret(seed, &format!("replica {shard} {index}"))).collect())
            .collect();
        let ids = clients.honest.iter().chain(&clients.byzantine).chain([&clients.auditor]);
        let mut rights = Random::stream(seed, "rights");
        let permissions = ids.enumerate().map(|(at, id)| {
            let is_limited = setting.rights == Rights::Some && *id != clients.auditor;
            let prefixes = if is_limited { Prefixes::draw::<S>(&mut rights) } else { Prefixes::all() };
            (*id, prefixes.of(secret(seed, &format!("client {at}")).public()))
        });
        let replica_keys = secrets.iter().map(|shard| shard.iter().map(SecretKey::public).collect()).collect();
        let cluster = with_rights(setting.faults, setting.placement_of_keys(), replica_keys, permissions.collect());
        let changes = setting.fault_kinds.contains(&FaultKind::Reconfigure).then(|| {
            let replicas = (0..).zip(secrets.iter().flatten()).map(|(at, key)| (Actor::Replica(at), SecretKey::from_bytes(key.to_bytes())));
            let all = clients.honest.len() + clients.byzantine.len() + 1;
            let of_clients = (0..all).map(|at| (Actor::Client(at), secret(seed, &format!("client {at}"))));
            Changes::new(seed, &cluster, replicas.chain(of_clients))
        });
        let verifier = || {
            let verifier = Verifier::new(cluster.clone(), Signatures::Ed25519, 1 << 14);
            Arc::new(verifier.expect("keys drawn from a seed are good keys"))
        };
        let participants = setting.shards * setting.replicas_per_shard() + clients.honest.len() + clients.byzantine.len() + 1;
        let verifiers = match setting.verifiers {
            Verifiers::Each => (0..participants).map(|_| verifier()).collect(),
            Verifiers::Shared if changes.is_some() => (0..participants).map(|_| verifier()).collect(),
            Verifiers::Shared => vec![verifier(); participants],
        };
        let faults_end_at = EPOCH_NS + setting.fault_phase_ms * 1_000_000;
        let mut world = Self {
            network: Network::new(seed, setting.links, setting.regions),
            disk: Random::stream(seed, "disk"),
            faults: Random::stream(seed, "faults"),
            network_adversary: S::network_adversary(&cluster, &setting, seed, faults_end_at),
            upgrades: Random::stream(seed, "upgrades"),
            rollouts: BTreeMap::new(),
            too_few_until: 0,
            scenario: scenario.clone(),
            seed,
            now: EPOCH_NS,
            queue: Queue::default(),
            checker: S::checker(&cluster, &clients),
            cluster,
            verifiers,
            changes,
            replicas: Vec::new(),
            clients: Vec::new(),
            budget: Budget::new(setting.faults),
            trace: Trace::new(tracing),
            counts: Counts::default(),
            engine_counts: S::Counts::default(),
            phase: Phase::Faults,
            unnoticed: BTreeMap::new(),
            spins: 0,
            broken,
            setting,
        };
        let mut clocks = Random::stream(seed, "clocks");
        world.add_replicas(secrets, &clients, &mut clocks);
        world.add_clients(&clients, &mut clocks);
        world
    }

    fn add_replicas(&mut self, secrets: Vec<Vec<SecretKey>>, clients: &Clients, clocks: &mut Random) {
        for (shard, secrets) in (0..).zip(secrets) {
            for (index, secret) in (0..).zip(secrets) {
                let id = ReplicaId { shard: ShardId(shard), index };
                let fault = self.setting.faulty.get(&id);
                assert!(fault.is_none() || self.budget.blame(id), "{id} would be one too many at fault in its shard");
                let liar = match fault {
                    Some(ReplicaFault::Lies(strategies)) => {
                        self.trace.line(self.now, || format!("{id} lies: {strategies:?}"));
                        let random = Random::stream(self.seed, &format!("liar {id}"));
                        Some(S::liar(&self.cluster, id, strategies.clone(), random, clients))
                    }
                    Some(ReplicaFault::DiskDamage) | None => None,
                };
                let batch_signer = BatchSigner::new(secret, self.cluster.id(), id, Signatures::Ed25519);
                // Where all share a verifier, nobody would check what its signer vouches for.
                let batch_signer = match self.setting.verifiers {
                    Verifiers::Each => batch_signer.known_to(self.verifiers[self.replicas.len()].clone()),
                    Verifiers::Shared => batch_signer,
                };
                let inputs_max = Random::stream(self.seed, &format!("inputs {id}")).pick(&[1, 8, INPUTS_MAX]);
                let mut replica = ReplicaActor::new(Parts {
                    id,
                    liar,
                    clock: Clock::new(clocks, self.setting.clocks),
                    batch_signer,
                    cluster: self.cluster.clone(),
                    options: S::options(&self.setting, id),
                    bounds: Bounds { inputs_max, ..Bounds::default() },
                    segment_bytes_max: self.setting.segment_bytes_max,
                });
                self.break_rule(&mut replica, clients);
                self.replicas.push(replica);
            }
        }
    }

    /// Breaks what a test of the checkers wants to be broken of one replica.
    fn break_rule(&self, replica: &mut ReplicaActor<S>, clients: &Clients) {
        replica.sends_before_writing = matches!(self.broken, Some(BrokenRule::SendBeforeWriting));
        if let Some(BrokenRule::OneLiarTooMany(strategy)) = self.broken {
            let random = Random::stream(self.seed, "sabotage");
            let lies = usize::from(replica.id.index) <= self.setting.faults;
            replica.liar = lies.then(|| S::liar(&self.cluster, replica.id, vec![strategy], random, clients));
        }
    }

    fn add_clients(&mut self, clients: &Clients, clocks: &mut Random) {
        let strategies = self.setting.byzantine_clients.iter().map(Some);
        let strategies = clients.honest.iter().map(|_| None).chain(strategies).chain([None]);
        for (at, strategies) in strategies.enumerate() {
            let id = client_id(at);
            let cheat = strategies.map(|strategies| {
                self.trace.line(self.now, || format!("{id} cheats: {strategies:?}"));
                (strategies.clone(), Random::stream(self.seed, &format!("rogue {id}")))
            });
            let random = Random::stream(self.seed, &format!("client {id}"));
            let machine = S::client(&self.cluster, id, &self.setting, cheat, clients);
            self.clients.push(ClientActor::new(id, machine, Clock::of_client(clocks, self.setting.clocks), random));
        }
    }
}
