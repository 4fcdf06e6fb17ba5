//! Whence a request comes, as far as limits are concerned.

use std::net::IpAddr;

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

#[cfg(test)]
mod tests {
    use super::*;

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
