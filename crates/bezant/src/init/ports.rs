//! Which ports a new cluster takes.

use std::net::{Ipv4Addr, TcpListener};
use std::str::FromStr;

use crate::failure::Failure;

/// Where `auto` looks. Below what systems hand out to outgoing connections (32768 and up): a port from there could be
/// taken, by one of the cluster's own connections, between its being found free and its replica's start.
const AUTO_PORTS: std::ops::Range<u16> = 20_000..32_000;
/// How many ports `auto` tries for each one it needs.
const AUTO_TRIES_MAX: usize = 50;

/// `--base-port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BasePort {
    /// Count up from here.
    From(u16),
    /// Take what is free on this computer.
    Auto,
}

impl FromStr for BasePort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(port @ 1..) => Ok(Self::From(port)),
            _ => Err(format!("a port is a number from 1 to 65535, or auto; not {text:?}")),
        }
    }
}

impl BasePort {
    /// As many ports as asked for.
    pub fn take(self, count: usize) -> Result<Vec<u16>, Failure> {
        match self {
            Self::From(first) => {
                let end = usize::from(first) + count;
                if end > usize::from(u16::MAX) + 1 {
                    return Err(Failure::wrong(format!("{count} ports from {first} on end past 65535")).help("lower --base-port"));
                }
                Ok((first..=u16::MAX).take(count).collect())
            }
            Self::Auto => free(count),
        }
    }
}

/// Free ports of this computer, held all at once until each is found.
fn free(count: usize) -> Result<Vec<u16>, Failure> {
    let mut held = Vec::with_capacity(count);
    let mut ports = Vec::with_capacity(count);
    for _ in 0..count * AUTO_TRIES_MAX {
        if ports.len() == count {
            break;
        }
        let port = rand::random_range(AUTO_PORTS);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push(listener);
            ports.push(port);
        }
    }
    if ports.len() < count {
        return Err(
            Failure::failed(format!("fewer than {count} ports are free on this computer")).help("choose them yourself with --base-port")
        );
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_count_up_and_end_at_the_last() {
        assert_eq!(BasePort::From(7400).take(3).unwrap(), [7400, 7401, 7402]);
        assert_eq!(BasePort::From(65_535).take(1).unwrap(), [65_535]);
        assert!(BasePort::From(65_535).take(2).is_err());
        assert!("0".parse::<BasePort>().is_err() && "70000".parse::<BasePort>().is_err() && "x".parse::<BasePort>().is_err());
    }

    #[test]
    fn auto_gives_different_ports() {
        let mut ports = BasePort::Auto.take(24).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 24);
    }
}
