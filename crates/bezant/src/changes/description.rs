//! Configurations in words: what one changes of another.

use std::collections::BTreeMap;

use crypto::{Chain, Configuration};
use serde_json::{Value, json};
use types::{ClientId, ClientLimits, Key, Permission};

/// How a key is named where it has no owner's name: its first digits.
pub fn name_of_key(key: &[u8; 32]) -> String {
    format!("operator {}…", &hex::encode(key)[..12])
}

fn key(bytes: &[u8; 32]) -> String {
    format!("{}…", &hex::encode(bytes)[..12])
}

fn prefixes(keys: &[Key]) -> String {
    let named: Vec<String> =
        keys.iter().map(|key| if key.as_bytes().is_empty() { "everything".to_owned() } else { key.to_string() }).collect();
    if named.is_empty() { "nothing".to_owned() } else { named.join(", ") }
}

fn limits(limits: ClientLimits) -> String {
    let named = [
        ("transactions_max", limits.transactions),
        ("keys_max", limits.keys),
        ("bytes_max", limits.bytes),
        ("reads_per_second", limits.reads_per_second),
    ];
    let named: Vec<String> = named.into_iter().filter_map(|(name, limit)| Some(format!("{name} {}", limit?))).collect();
    if named.is_empty() { "none of its own".to_owned() } else { named.join(", ") }
}

fn client_lines(client: ClientId, before: Option<&Permission>, after: Option<&Permission>) -> Vec<String> {
    match (before, after) {
        (None, None) => Vec::new(),
        (Some(_), None) => vec![format!("{client} is revoked")],
        (None, Some(new)) => {
            let (read, write) = (prefixes(&new.read_prefixes), prefixes(&new.write_prefixes));
            vec![format!(
                "{client} is new, with key {}; reads {read}; writes {write}; limits: {}",
                key(&new.public_key),
                limits(new.limits)
            )]
        }
        (Some(old), Some(new)) => {
            let mut lines = Vec::new();
            if old.public_key != new.public_key {
                lines.push(format!("{client} gets the key {} instead of {}", key(&new.public_key), key(&old.public_key)));
            }
            for (verb, old, new) in [("read", &old.read_prefixes, &new.read_prefixes), ("write", &old.write_prefixes, &new.write_prefixes)]
            {
                if old != new {
                    lines.push(format!("{client} may {verb} {} instead of {}", prefixes(new), prefixes(old)));
                }
            }
            if old.limits != new.limits {
                lines.push(format!("{client} has limits: {} instead of {}", limits(new.limits), limits(old.limits)));
            }
            lines
        }
    }
}

/// What `after` changes of `before`, a line each.
pub fn difference(before: &Configuration, after: &Configuration) -> Vec<String> {
    let mut lines = Vec::new();
    for (shard, (old, new)) in before.replicas.iter().zip(&after.replicas).enumerate() {
        for (index, (old, new)) in old.iter().zip(new).enumerate() {
            let name = format!("s{shard}-r{index}");
            if old.public_key != new.public_key {
                lines.push(format!("{name} gets the key {} instead of {}", key(&new.public_key), key(&old.public_key)));
            }
            if old.address != new.address {
                lines.push(format!("{name} is at {} instead of {}", new.address, old.address));
            }
            if old.http != new.http {
                lines.push(format!("{name} answers HTTP at {} instead of {}", new.http, old.http));
            }
        }
    }
    let (old, new) = (by_number(before), by_number(after));
    let mut numbers: Vec<ClientId> = old.keys().chain(new.keys()).copied().collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        lines.extend(client_lines(number, old.get(&number).copied(), new.get(&number).copied()));
    }
    for key in after.operators.keys.iter().filter(|key| !before.operators.keys.contains(key)) {
        lines.push(format!("{} is new", name_of_key(key)));
    }
    for key in before.operators.keys.iter().filter(|key| !after.operators.keys.contains(key)) {
        lines.push(format!("{} goes", name_of_key(key)));
    }
    if before.operators.needed != after.operators.needed {
        lines.push(format!("{} operators must sign instead of {}", after.operators.needed, before.operators.needed));
    }
    lines
}

fn by_number(configuration: &Configuration) -> BTreeMap<ClientId, &Permission> {
    configuration.clients.iter().map(|(client, permission)| (*client, permission)).collect()
}

/// A configuration for programs.
pub fn to_json(configuration: &Configuration, chain: &Chain) -> Value {
    let replicas: Vec<Value> = configuration
        .replicas
        .iter()
        .enumerate()
        .flat_map(|(shard, holders)| {
            holders.iter().enumerate().map(move |(index, holder)| {
                json!({"name": format!("s{shard}-r{index}"), "public_key": hex::encode(holder.public_key), "address": holder.address, "http": holder.http})
            })
        })
        .collect();
    let words = |keys: &[Key]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    let client = |(client, permission): &(ClientId, Permission)| {
        let limits = permission.limits;
        json!({
            "number": client.0, "public_key": hex::encode(permission.public_key),
            "read": words(&permission.read_prefixes), "write": words(&permission.write_prefixes),
            "transactions_max": limits.transactions, "keys_max": limits.keys, "bytes_max": limits.bytes,
            "reads_per_second": limits.reads_per_second,
        })
    };
    json!({
        "version": configuration.version,
        "digest": hex::encode(configuration.digest(chain.id())),
        "operators_needed": configuration.operators.needed,
        "operators": configuration.operators.keys.iter().map(hex::encode).collect::<Vec<_>>(),
        "replicas": replicas,
        "clients": configuration.clients.iter().map(client).collect::<Vec<_>>(),
    })
}
