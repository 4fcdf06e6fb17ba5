//! Writes `cluster.toml`.

use std::fmt::Write as _;

use crypto::Signatures;
use types::{Key, Permission, Placement};

use crate::{StructuralLocks, Topology};

/// A string as TOML writes it.
#[must_use]
pub fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn list(keys: &[Key]) -> String {
    keys.iter().map(|key| quoted(&key.to_string())).collect::<Vec<_>>().join(", ")
}

fn limits(permission: &Permission) -> String {
    let limits = permission.limits;
    let named = [
        ("transactions_max", limits.transactions),
        ("keys_max", limits.keys),
        ("bytes_max", limits.bytes),
        ("reads_per_second", limits.reads_per_second),
    ];
    named.into_iter().filter_map(|(name, limit)| limit.map(|limit| format!("{name} = {limit}\n"))).collect()
}

impl Topology {
    /// The cluster in the form of `cluster.toml`, as [`Topology::read_first`] reads it.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let (cluster, newest) = (&self.cluster, self.chain.newest());
        let mut out = format!(
            "format = 1\n\
             id = \"{}\"\n\
             engine = \"{}\"\n\
             # How many replicas of each shard may lie. A shard has {} replicas then ({}).\n\
             faults = {}\n",
            cluster.id(),
            self.engine.name,
            cluster.replicas_per_shard(),
            self.engine.shape,
            cluster.faults()
        );
        if self.signatures != Signatures::Ed25519 {
            out += "# Replicas do not sign: for measurement only, since such a cluster survives no lie.\nsignatures = \"off\"\n";
        }
        if self.structural_locks != StructuralLocks::default() {
            out += "# Insertions exclude ranges on their whole shard: for measurement only.\nstructural_locks = \"whole-shard\"\n";
        }
        if let Some(pending_min) = cluster.pending_min() {
            let most = self.engine.pending_room.map_or(pending_min, |room| room.most);
            let _ = writeln!(
                out,
                "# A client has room for {most} pending transactions on a shard: less with each that others had to end, more with each that it\n\
                 # ended itself, and never less than this number. What replicas have in their journals was executed by it: never add,\n\
                 # change or remove this line once they have run.\n\
                 pending_min = {pending_min}"
            );
        }
        out += "# Which shard holds a key: \"hash\", or \"ranges\" with the first key of each shard but the first in `bounds`.\n";
        match cluster.placement() {
            Placement::Hash => out += "placement = \"hash\"\n",
            Placement::Ranges(bounds) => {
                let _ = writeln!(out, "placement = \"ranges\"\nbounds = [{}]", list(bounds));
            }
        }
        if !newest.operators.keys.is_empty() {
            out += "# So many of the operators must sign whatever changes the cluster while it runs: more than half.\n";
            let _ = writeln!(out, "operators_needed = {}\n", newest.operators.needed);
            out += "# Every operator. Their secret keys are in no member's folder.\n";
            for key in &newest.operators.keys {
                let _ = writeln!(out, "[[operator]]\npublic_key = \"{}\"\n", hex::encode(key));
            }
        } else {
            out += "\n";
        }
        out += "# Every replica: where peers and clients reach it, where it answers HTTP, and the key it signs with.\n";
        for (replica, endpoint) in &self.endpoints {
            let key = cluster.replica_key(*replica).map(hex::encode).unwrap_or_default();
            let (address, http) = (quoted(&endpoint.address), quoted(&endpoint.http));
            let _ = writeln!(out, "[[replica]]\nname = \"{replica}\"\naddress = {address}\nhttp = {http}\npublic_key = \"{key}\"\n");
        }
        out += "# Every client, and the beginnings of the keys it may read and write; \"\" begins every key. It may also have transactions_max\n\
                # (under way), keys_max and bytes_max (of a transaction), and reads_per_second.\n";
        for (number, permission) in cluster.clients() {
            let key = hex::encode(permission.public_key);
            let [read, write] = [&permission.read_prefixes, &permission.write_prefixes].map(|prefixes| list(prefixes));
            let _ = writeln!(
                out,
                "[[client]]\nnumber = {}\npublic_key = \"{key}\"\nread = [{read}]\nwrite = [{write}]\n{}",
                number.0,
                limits(permission)
            );
        }
        out.truncate(out.trim_end().len());
        out + "\n"
    }
}
