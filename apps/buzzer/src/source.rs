//! Whence a request comes, as far as limits are concerned.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderMap;

/// Whence something comes: the smallest network that one owner has, and a larger one that one owner may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) subnet: Subnet,
    /// None of an IPv4 address: of these few owners have many.
    pub(crate) site: Option<Site>,
}

/// An IPv4 address, or the first 64 bits of an IPv6 address: whoever has one address of these has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subnet {
    V4(u32),
    V6(u64),
}

/// The first 48 bits of an IPv6 address. A line at home often has 256 subnets, and a rented server may have all the 65,536 that begin with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Site(u64);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self { subnet: Subnet::V4(address.to_bits()), site: None },
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                Self { subnet: Subnet::V6((bits >> 64) as u64), site: Some(Site((bits >> 80) as u64)) }
            }
        }
    }
}

/// Where proxies add the address of whoever asks them.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The proxies that are believed when they say whence a request comes.
#[derive(Debug)]
pub struct Proxies {
    blocks: Vec<Block>,
    /// Whether it was said in the log that one of them does not say it.
    was_missed: AtomicBool,
}

/// Those on this machine.
impl Default for Proxies {
    fn default() -> Self {
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        Self::new(loopback.map(|address| Block { bits: bits(address), mask: u128::MAX }).to_vec())
    }
}

impl Proxies {
    /// Those whose addresses are in these blocks.
    #[must_use]
    pub fn new(blocks: Vec<Block>) -> Self {
        Self { blocks, was_missed: AtomicBool::new(false) }
    }

    /// Whether what this address says is believed.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let bits = bits(address);
        self.blocks.iter().any(|block| bits & block.mask == block.bits)
    }

    /// Whence a request with these headers comes, which was received from `peer`: the last address that is not a proxy's.
    pub(crate) fn source(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        // Whoever else connects may write anything into that header.
        if !self.contains(peer) {
            return peer;
        }
        let lines = headers.get_all(FORWARDED_FOR).iter().rev().map(|line| line.to_str().unwrap_or("?"));
        let mut source = None;
        for written in lines.flat_map(|line| line.rsplit(',')) {
            let Some(address) = read_address(written) else { break };
            source = Some(address);
            if !self.contains(address) {
                break;
            }
        }
        source.unwrap_or_else(|| {
            if !self.was_missed.swap(true, Ordering::Relaxed) {
                eprintln!(
                    "warning: the proxy at {peer} sends no X-Forwarded-For that can be read: whatever comes through it is counted as one network"
                );
            }
            peer
        })
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    bits: u128,
    mask: u128,
}

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a proxy is an address, as 192.0.2.1, or a block of addresses, as 192.0.2.0/24")]
pub struct WrongBlock;

impl FromStr for Block {
    type Err = WrongBlock;

    fn from_str(text: &str) -> Result<Self, WrongBlock> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| WrongBlock)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length: u32 = length.map_or(Ok(most), str::parse).map_err(|_| WrongBlock)?;
        let rest = most.checked_sub(length).ok_or(WrongBlock)?;
        let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
        Ok(Self { bits: bits(address) & mask, mask })
    }
}

/// An address as the IPv6 address that it is or stands for, so that both kinds are compared in the same way.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// An address as proxies write it: some add the port, and some write brackets around an IPv6 address.
fn read_address(written: &str) -> Option<IpAddr> {
    let written = written.trim();
    let bare = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(written);
    bare.parse().ok().or_else(|| written.parse().ok().map(|address: SocketAddr| address.ip()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn only_a_proxy_says_whence_a_request_comes() {
        let blocks = ["127.0.0.1", "10.0.0.0/8", "2001:db8:f::/48"].map(|block| block.parse().expect("a block"));
        let proxies = Proxies::new(blocks.to_vec());
        let source = |lines: &[&str], peer: &str| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED_FOR, HeaderValue::from_str(line).expect("a header"));
            }
            proxies.source(&headers, address(peer))
        };
        for (lines, peer, from) in [
            (&["192.0.2.1"][..], "127.0.0.1", "192.0.2.1"),
            // What the browser has sent stands before what the proxy has added.
            (&["192.0.2.9, 192.0.2.1"], "10.1.2.3", "192.0.2.1"),
            (&["192.0.2.9", "192.0.2.1"], "::ffff:10.1.2.3", "192.0.2.1"),
            // One proxy behind another.
            (&["192.0.2.9, 192.0.2.1, 10.4.5.6"], "2001:db8:f::1", "192.0.2.1"),
            (&["192.0.2.1:4711"], "127.0.0.1", "192.0.2.1"),
            (&["[2001:db8::1]:4711"], "127.0.0.1", "2001:db8::1"),
            (&["[2001:db8::1]"], "127.0.0.1", "2001:db8::1"),
            (&["2001:db8::1"], "127.0.0.1", "2001:db8::1"),
            (&["10.0.0.7"], "127.0.0.1", "10.0.0.7"),
            // Who is no proxy is not believed.
            (&["192.0.2.1"], "198.51.100.1", "198.51.100.1"),
            (&["192.0.2.1"], "127.0.0.2", "127.0.0.2"),
        ] {
            assert_eq!(source(lines, peer), address(from), "{lines:?} {peer}");
            assert!(!proxies.was_missed.load(Ordering::Relaxed));
        }
        for lines in [&[][..], &["192.0.2.1, unknown"]] {
            assert_eq!(source(lines, "127.0.0.1"), address("127.0.0.1"), "{lines:?}");
            assert!(proxies.was_missed.swap(false, Ordering::Relaxed), "it is said in the log");
        }
    }

    #[test]
    fn a_block_is_an_address_or_what_begins_as_it() {
        let contains = |block: &str, text: &str| Proxies::new(vec![block.parse().expect("a block")]).contains(address(text));
        assert!(contains("192.0.2.0/24", "192.0.2.255") && !contains("192.0.2.0/24", "192.0.3.0"));
        assert!(contains("0.0.0.0/0", "192.0.2.1") && contains("::/0", "192.0.2.1") && !contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("2001:db8::1", "2001:db8::1") && !contains("2001:db8::1", "2001:db8::2"));
        for wrong in ["", "proxy", "192.0.2.1/33", "192.0.2.1/", "192.0.2.1/-1", "192.0.2.1:80", "2001:db8::/129"] {
            assert_eq!(wrong.parse::<Block>(), Err(WrongBlock), "{wrong}");
        }
        assert!(Proxies::default().contains(address("::1")) && !Proxies::default().contains(address("192.0.2.1")));
    }

    #[test]
    fn all_addresses_of_a_network_are_one() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:ffff:ffff:ffff"));
        let [one, other, elsewhere] = ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:1::1"].map(source);
        assert!(one.subnet != other.subnet && one.site == other.site, "two subnets of one site");
        assert_ne!(one.site, elsewhere.site);
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
    }
}
