//! Members who draw their own keys: each is known by a card, which is public, one line long, and holds nothing but what others must know.
//!
//! ```text
//! bezant-replica db1.bank.example:7400 127.0.0.1:7401 3b6a27bc…   where it is reached, where it answers HTTP, and its public key
//! bezant-client 8a88e3dd…                                         its public key
//! bezant-operator 5c19ab07…                                       its public key
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use crypto::check_public_key;

use super::{Member, is_host, listen_ip, name};
use crate::failure::Failure;

/// The longest file of cards that is read, in bytes: far more than a cluster has members.
const CARDS_BYTES_MAX: u64 = 4 << 20;

/// What others must know of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Card {
    /// A replica, reached there by peers and clients.
    Replica { host: String, port: u16, http: SocketAddr, public_key: [u8; 32] },
    /// A client.
    Client { public_key: [u8; 32] },
    /// An operator, who signs changes of the cluster.
    Operator { public_key: [u8; 32] },
}

impl Card {
    fn public_key(&self) -> [u8; 32] {
        match self {
            Self::Replica { public_key, .. } | Self::Client { public_key } | Self::Operator { public_key } => *public_key,
        }
    }
}

impl fmt::Display for Card {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica { host, port, http, public_key } => {
                write!(formatter, "bezant-replica {host}:{port} {http} {}", hex::encode(public_key))
            }
            Self::Client { public_key } => write!(formatter, "bezant-client {}", hex::encode(public_key)),
            Self::Operator { public_key } => write!(formatter, "bezant-operator {}", hex::encode(public_key)),
        }
    }
}

impl FromStr for Card {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["bezant-replica", address, http, key] => {
                let (host, port) = address_from_text(address)?;
                let http = http.parse().map_err(|_| format!("HTTP is answered at IP:PORT, as 127.0.0.1:7401, not {http:?}"))?;
                Ok(Self::Replica { host, port, http, public_key: public_key(key)? })
            }
            ["bezant-client", key] => Ok(Self::Client { public_key: public_key(key)? }),
            ["bezant-operator", key] => Ok(Self::Operator { public_key: public_key(key)? }),
            _ => Err("a card is a line as `bezant key new` prints it: bezant-replica HOST:PORT IP:PORT KEY, bezant-client KEY, or \
                      bezant-operator KEY"
                .to_owned()),
        }
    }
}

/// A replica's address: its host, and its port.
pub fn address_from_text(text: &str) -> Result<(String, u16), String> {
    let parts = text.rsplit_once(':').filter(|(host, _)| is_host(host));
    let port = parts.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port != 0);
    match (parts, port) {
        (Some((host, _)), Some(port)) => Ok((host.to_owned(), port)),
        _ => Err(format!("an address is HOST:PORT, as db1.example:7400, not {text:?}")),
    }
}

fn public_key(text: &str) -> Result<[u8; 32], String> {
    let mut key = [0; 32];
    hex::decode_to_slice(text, &mut key).map_err(|_| "a public key has 64 hexadecimal digits".to_owned())?;
    check_public_key(&key).map_err(|error| format!("the public key is refused: {error}"))?;
    Ok(key)
}

/// All members' cards, in the order of the file.
pub struct Cards(Vec<Card>);

impl Cards {
    /// Reads a file of cards; empty lines and comments (`#`) do not count.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let unreadable = |error: std::io::Error| Failure::wrong(format!("the cards cannot be read: {error}")).at(path.display());
        let mut text = String::new();
        File::open(path).and_then(|file| file.take(CARDS_BYTES_MAX + 1).read_to_string(&mut text)).map_err(unreadable)?;
        if text.len() as u64 > CARDS_BYTES_MAX {
            return Err(Failure::wrong("no cluster has so many members").at(path.display()));
        }
        let (mut cards, mut keys) = (Vec::new(), BTreeSet::new());
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}, line {}", path.display(), at + 1);
            let card: Card = line.parse().map_err(|what: String| Failure::wrong(what).at(&place))?;
            if !keys.insert(card.public_key()) {
                return Err(Failure::wrong("two members have the same key").at(place).help("each member draws its own: bezant key new"));
            }
            cards.push(card);
        }
        Ok(Self(cards))
    }

    /// The hosts of the replicas, one for each.
    pub fn hosts(&self) -> Vec<String> {
        self.replicas().map(|(host, ..)| host.clone()).collect()
    }

    fn replicas(&self) -> impl Iterator<Item = (&String, u16, SocketAddr, [u8; 32])> {
        self.0.iter().filter_map(|card| match card {
            Card::Replica { host, port, http, public_key } => Some((host, *port, *http, *public_key)),
            Card::Client { .. } | Card::Operator { .. } => None,
        })
    }

    /// The public keys of the clients.
    pub fn clients(&self) -> impl Iterator<Item = [u8; 32]> {
        self.0.iter().filter_map(|card| match card {
            Card::Client { public_key } => Some(*public_key),
            Card::Replica { .. } | Card::Operator { .. } => None,
        })
    }

    /// The public keys of the operators.
    pub fn operators(&self) -> impl Iterator<Item = [u8; 32]> {
        self.0.iter().filter_map(|card| match card {
            Card::Operator { public_key } => Some(*public_key),
            Card::Replica { .. } | Card::Client { .. } => None,
        })
    }

    /// The replicas of a cluster of that shape.
    pub fn members(&self, shards: usize, per_shard: usize) -> Result<Vec<Member>, Failure> {
        let (found, needed) = (self.replicas().count(), shards * per_shard);
        if found != needed {
            return Err(Failure::wrong(format!("there are cards of {found} replicas, and {shards} shards of {per_shard} take {needed}"))
                .at("--members")
                .help("collect a card of each replica, or change --faults or --shards"));
        }
        if self.clients().next().is_none() {
            return Err(Failure::wrong("there is no card of a client").at("--members").help("draw one: bezant key new DIR --client"));
        }
        let member = |(at, (host, port, http, public_key)): (usize, (&String, u16, SocketAddr, [u8; 32]))| Member {
            name: name(at, per_shard),
            public_key,
            secret: None,
            address: format!("{host}:{port}"),
            listen: SocketAddr::new(listen_ip(host), port),
            http,
        };
        Ok(self.replicas().enumerate().map(member).collect())
    }
}

#[cfg(test)]
mod tests {
    use crypto::SecretKey;

    use super::*;

    #[test]
    fn a_card_reads_back_and_a_wrong_one_says_why() {
        let public_key = SecretKey::from_bytes([7; 32]).public();
        for card in [
            Card::Client { public_key },
            Card::Operator { public_key },
            Card::Replica { host: "[::1]".to_owned(), port: 7_400, http: ([127, 0, 0, 1], 7_401).into(), public_key },
        ] {
            assert_eq!(card.to_string().parse(), Ok(card));
        }
        let key = hex::encode(public_key);
        for (text, what) in [
            (format!("bezant-replica db1 127.0.0.1:7401 {key}"), "HOST:PORT"),
            (format!("bezant-replica db1:7400 db1:7401 {key}"), "IP:PORT"),
            (format!("bezant-client {}", &key[2..]), "64 hexadecimal"),
            (format!("bezant-client {}", "00".repeat(32)), "refused"),
            (format!("client {key}"), "a card is"),
        ] {
            assert!(text.parse::<Card>().expect_err(&text).contains(what), "{text}");
        }
    }
}
