//! Everybody in the world is put in their place.

use std::collections::BTreeMap;
use std::sync::Arc;

use crypto::{BatchSigner, SecretKey, Signatures, Verifier};
use types::{ClientId, Cluster, ClusterId, Key, Permission, Placement, ReplicaId, ShardId};

use super::{World, client_id};
use crate::adversary::{AttackConfig, Liar};
use crate::checker::Checker;
use crate::client::ClientActor;
use crate::clock::{Clock, EPOCH_NS};
use crate::faults::Budget;
use crate::foe::Foe;
use crate::network::Network;
use crate::replica::{Parts, ReplicaActor, friends_of};
use crate::report::Counts;
use crate::scenario::Scenario;
use crate::setting::{Fault, Setting, Verifiers};
use crate::trace::{Trace, Tracing};
use crate::trouble::Phase;
use random::Random;

fn secret(seed: u64, name: &str) -> SecretKey {
    let mut random = Random::stream(seed, name);
    let mut bytes = [0; 32];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    SecretKey::from_bytes(bytes)
}

impl World {
    pub fn new(scenario: &Scenario, seed: u64, tracing: Tracing) -> Self {
        let setting = Setting::draw(scenario, seed);
        // The auditor comes last: it does nothing before the end.
        let client_count = setting.clients + setting.rogues.len() + 1;
        let secrets: Vec<Vec<SecretKey>> = (0..setting.shards)
            .map(|shard| (0..setting.replicas_per_shard()).map(|index| secret(seed, &format!("replica {shard} {index}"))).collect())
            .collect();
        let keys = secrets.iter().map(|shard| shard.iter().map(SecretKey::public).collect()).collect();
        let everywhere = vec![Key::from("")];
        let clients = (0..client_count).map(|at| {
            let public_key = secret(seed, &format!("client {at}")).public();
            let permission = Permission { public_key, read_prefixes: everywhere.clone(), write_prefixes: everywhere.clone() };
            (client_id(at), permission)
        });
        let id = ClusterId::new([7; 16]);
        let cluster = Arc::new(
            Cluster::new(id, setting.faults, Placement::Hash, keys, clients.collect()).expect("a setting describes a cluster that can be"),
        );
        let verifier = |cluster: &Arc<Cluster>| {
            Arc::new(Verifier::new(cluster.clone(), Signatures::Ed25519, 1 << 14).expect("keys drawn from a seed are good keys"))
        };
        let actors = setting.shards * setting.replicas_per_shard() + client_count;
        let verifiers = match setting.verifiers {
            Verifiers::Each => (0..actors).map(|_| verifier(&cluster)).collect(),
            Verifiers::Shared => vec![verifier(&cluster); actors],
        };
        let mut world = Self {
            network: Network::new(seed, setting.weather, setting.regions),
            disk: Random::stream(seed, "disk"),
            faults: Random::stream(seed, "faults"),
            foe: Foe::new(seed, setting.ploys.clone(), &cluster, setting.replica.window_ms, EPOCH_NS + setting.trouble_ms * 1_000_000),
            upgrades: Random::stream(seed, "upgrades"),
            rollouts: BTreeMap::new(),
            scenario: scenario.clone(),
            seed,
            now: EPOCH_NS,
            queue: BTreeMap::new(),
            happenings: 0,
            cluster,
            verifiers,
            replicas: Vec::new(),
            clients: Vec::new(),
            budget: Budget::new(setting.faults),
            checker: Checker::default(),
            trace: Trace::new(tracing),
            counts: Counts::default(),
            phase: Phase::Trouble,
            spins: 0,
            #[cfg(test)]
            sabotage: None,
            setting,
        };
        world.people(secrets);
        world
    }

    /// A world in which a rule is broken.
    #[cfg(test)]
    pub fn sabotaged(scenario: &Scenario, seed: u64, tracing: Tracing, sabotage: crate::sabotage::Sabotage) -> Self {
        let mut world = Self::new(scenario, seed, tracing);
        world.sabotage = Some(sabotage);
        if sabotage == crate::sabotage::Sabotage::InventTogether {
            for at in 0..world.replicas.len() {
                let replica = &mut world.replicas[at];
                let id = replica.id;
                let honest = world.clients[..world.setting.clients].iter().map(|client| client.id).collect();
                let strategies = vec![crate::adversary::ReplicaStrategy::InventVersions];
                let random = Random::stream(seed, "sabotage");
                replica.liar = (usize::from(id.index) <= world.setting.faults)
                    .then(|| Liar::new(id, world.cluster.clone(), strategies, random, std::collections::BTreeSet::new(), honest));
            }
        }
        for replica in &mut world.replicas {
            replica.speaks_before_writing = sabotage == crate::sabotage::Sabotage::SpeakBeforeWriting;
        }
        world
    }

    /// Puts everybody in their place.
    fn people(&mut self, secrets: Vec<Vec<SecretKey>>) {
        let (seed, setting) = (self.seed, self.setting.clone());
        let honest: Vec<ClientId> = (0..setting.clients).map(client_id).collect();
        let rogues: Vec<ClientId> = (setting.clients..setting.clients + setting.rogues.len()).map(client_id).collect();
        self.checker.honest_clients = honest.iter().copied().collect();
        let mut clocks = Random::stream(seed, "clocks");
        for (shard, secrets) in (0..).zip(secrets) {
            for (index, secret) in (0..).zip(secrets) {
                let id = ReplicaId { shard: ShardId(shard), index };
                let fault = setting.faulty.get(&id);
                let strategies = match fault {
                    Some(Fault::Lies(strategies)) => Some(strategies.clone()),
                    Some(Fault::Rots) | None => None,
                };
                assert!(fault.is_none() || self.budget.blame(id), "{id} would be one too many at fault in its shard");
                let liar = strategies.map(|strategies| {
                    let random = Random::stream(seed, &format!("liar {id}"));
                    self.trace.line(self.now, || format!("{id} lies: {strategies:?}"));
                    Liar::new(id, self.cluster.clone(), strategies, random, friends_of(&rogues), honest.clone())
                });
                let mut options = setting.replica;
                options.seed ^= u64::from(shard) << 32 | u64::from(index);
                self.replicas.push(ReplicaActor::new(Parts {
                    id,
                    liar,
                    clock: Clock::new(&mut clocks, setting.clocks),
                    batch_signer: BatchSigner::new(secret, self.cluster.id(), id, Signatures::Ed25519),
                    cluster: self.cluster.clone(),
                    options,
                    coordinator: setting.coordinator,
                    segment_bytes_max: setting.segment_bytes_max,
                }));
            }
        }
        for at in 0..=setting.clients + setting.rogues.len() {
            let id = client_id(at);
            let cheat = at.checked_sub(setting.clients).and_then(|at| setting.rogues.get(at)).map(|strategies| {
                self.trace.line(self.now, || format!("{id} cheats: {strategies:?}"));
                let habits = AttackConfig { strategies: strategies.clone(), per_mille: 1_000, victims: honest.clone() };
                (habits, Random::stream(seed, &format!("rogue {id}")))
            });
            if at == setting.clients + setting.rogues.len() {
                self.checker.honest_clients.insert(id);
            }
            let random = Random::stream(seed, &format!("client {id}"));
            let clock = Clock::new(&mut clocks, setting.clocks);
            self.clients.push(ClientActor::new(id, self.cluster.clone(), setting.coordinator, clock, random, cheat));
        }
    }
}
