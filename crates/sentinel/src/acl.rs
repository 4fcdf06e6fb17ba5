//! Who may do what.
//!
//! A connection is known by its address, and by what its client has shown: a user and password (`digest`), or a certificate (`x509`).
//! Of a password only its hash is kept, which is what stands in ACLs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jute::permissions::READ;
use jute::{Acl, ErrorCode, Id};
use sha1::{Digest as _, Sha1};

use crate::limits::{ACL_LINES_MAX, CHECKED_LINES_MAX};
use crate::node::AclLines;

/// May do everything.
const SUPER: &str = "super";
/// Every permission, those that ZooKeeper does not know as well.
const ALL_BITS: i32 = -1;

/// Everybody may do everything.
pub(crate) fn open() -> AclLines {
    Arc::new(vec![Acl::open()])
}

/// Whether `who` may do any of `wanted`.
///
/// # Errors
/// [`ErrorCode::NoAuth`].
pub(crate) fn check(acl: &[Acl], wanted: i32, who: &[Id]) -> Result<(), ErrorCode> {
    allow(Lines::parse(acl).granted(who), wanted)
}

fn allow(granted: i32, wanted: i32) -> Result<(), ErrorCode> {
    if granted & wanted != 0 { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

/// How many lines of an ACL are looked at, beside the one that nearly all have.
pub(crate) fn lines_beside_one(acl: &[Acl]) -> usize {
    acl.len().saturating_sub(1)
}

fn is_anyone(id: &Id) -> bool {
    id.scheme == "world" && id.id == "anyone"
}

/// The lines of an ACL, parsed once for all that are compared with them.
pub(crate) struct Lines<'a> {
    /// An ACL without lines allows everything.
    is_empty: bool,
    /// What everybody may do.
    anyone: i32,
    networks: Vec<(i32, Network)>,
    others: Vec<&'a Acl>,
}

impl<'a> Lines<'a> {
    pub(crate) fn parse(acl: &'a [Acl]) -> Self {
        let mut lines = Self { is_empty: acl.is_empty(), anyone: 0, networks: Vec::new(), others: Vec::new() };
        for line in acl {
            match line.id.scheme.as_str() {
                "world" if is_anyone(&line.id) => lines.anyone |= line.permissions,
                "ip" => lines.networks.extend(Network::parse(&line.id.id).map(|network| (line.permissions, network))),
                "digest" | "x509" => lines.others.push(line),
                _ => {}
            }
        }
        lines
    }

    /// All that `who` may do.
    pub(crate) fn granted(&self, who: &[Id]) -> i32 {
        if self.is_empty || who.iter().any(|id| id.scheme == SUPER) {
            return ALL_BITS;
        }
        let mut granted = self.anyone;
        if !self.networks.is_empty() {
            let addresses = who.iter().filter(|id| id.scheme == "ip").filter_map(|id| id.id.parse().ok());
            for address in addresses {
                let met = self.networks.iter().filter(|(_, network)| network.contains(address));
                granted |= met.fold(0, |granted, (permissions, _)| granted | permissions);
            }
        }
        let met = self.others.iter().filter(|line| who.contains(&line.id));
        met.fold(granted, |granted, line| granted | line.permissions)
    }

    /// Whether `who` may read.
    pub(crate) fn may_read(&self, who: &[Id]) -> bool {
        allow(self.granted(who), READ).is_ok()
    }
}

/// What one request may do with the nodes that it meets: what it may with each ACL is found out once.
pub(crate) struct Checks<'a> {
    who: &'a [Id],
    /// By the place of the ACL in memory, which is not given to another one as long as it is held here.
    known: BTreeMap<usize, (AclLines, i32)>,
    /// How many lines were looked at, beside one for each ACL.
    lines: usize,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(who: &'a [Id]) -> Self {
        Self { who, known: BTreeMap::new(), lines: 0 }
    }

    /// Whether any of `wanted` is allowed.
    ///
    /// # Errors
    /// [`ErrorCode::NoAuth`], and [`ErrorCode::MarshallingError`] when the request has more lines looked at than one may.
    pub(crate) fn check(&mut self, acl: &AclLines, wanted: i32) -> Result<(), ErrorCode> {
        if acl.len() <= 1 {
            return check(acl, wanted, self.who);
        }
        let place = Arc::as_ptr(acl).addr();
        if let Some((_, granted)) = self.known.get(&place) {
            return allow(*granted, wanted);
        }
        if self.lines > CHECKED_LINES_MAX {
            return Err(ErrorCode::MarshallingError);
        }
        self.lines += lines_beside_one(acl);
        let granted = Lines::parse(acl).granted(self.who);
        self.known.insert(place, (acl.clone(), granted));
        allow(granted, wanted)
    }

    /// How many lines were looked at.
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }
}

/// The ACL that a node gets when `who` asks for `asked`: without repetitions, and `auth` stands for all that they have shown to be.
///
/// # Errors
/// [`ErrorCode::InvalidAcl`] when it is empty, or a line makes no sense.
pub(crate) fn resolve(asked: &[Acl], who: &[Id]) -> Result<AclLines, ErrorCode> {
    if let [only] = asked
        && is_anyone(&only.id)
    {
        return Ok(Arc::new(vec![only.clone()]));
    }
    if asked.is_empty() || asked.len() > ACL_LINES_MAX {
        return Err(ErrorCode::InvalidAcl);
    }
    let mut resolved: Vec<Acl> = Vec::new();
    for (at, line) in asked.iter().enumerate() {
        if asked[..at].contains(line) {
            continue;
        }
        match line.id.scheme.as_str() {
            "auth" => {
                let shown = who.iter().filter(|id| matches!(id.scheme.as_str(), "digest" | "x509"));
                let lines: Vec<Acl> = shown.map(|id| Acl { permissions: line.permissions, id: id.clone() }).collect();
                if lines.is_empty() {
                    return Err(ErrorCode::InvalidAcl);
                }
                resolved.extend(lines);
            }
            _ if is_valid(&line.id) => resolved.push(line.clone()),
            _ => return Err(ErrorCode::InvalidAcl),
        }
        if resolved.len() > ACL_LINES_MAX {
            return Err(ErrorCode::InvalidAcl);
        }
    }
    resolved.shrink_to_fit();
    Ok(resolved.into())
}

fn is_valid(id: &Id) -> bool {
    match id.scheme.as_str() {
        "world" => id.id == "anyone",
        "digest" => id.id.split_once(':').is_some_and(|(_, hash)| !hash.is_empty() && !hash.contains(':')),
        "ip" => Network::parse(&id.id).is_some(),
        "x509" => !id.id.is_empty(),
        _ => false,
    }
}

/// What a client of `user:password` is known as in ACLs.
#[must_use]
pub fn digest_id(user_and_password: &str) -> Id {
    let user = user_and_password.split(':').next().unwrap_or_default();
    let hash = base64(&Sha1::digest(user_and_password));
    Id { scheme: "digest".to_owned(), id: format!("{user}:{hash}") }
}

/// Who may do everything.
pub(crate) fn superuser() -> Id {
    Id::new(SUPER, "")
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().chain([&0, &0]).take(3).fold(0, |word, byte| word << 8 | usize::from(*byte));
        for place in 0..4 {
            let letter = char::from(LETTERS[word >> (18 - 6 * place) & 63]);
            out.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    out
}

/// Addresses with a common beginning.
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(width), |bits| bits.parse().ok())?;
        (bits <= width).then_some(Self { address, bits })
    }

    fn contains(&self, other: IpAddr) -> bool {
        let differing = match (self.address, other) {
            (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
            (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
            _ => return false,
        };
        differing.leading_zeros() >= self.bits
    }
}

#[cfg(test)]
mod tests {
    use jute::permissions::{ADMIN, ALL, READ, WRITE};

    use super::*;

    fn line(permissions: i32, scheme: &str, id: &str) -> Acl {
        Acl { permissions, id: Id::new(scheme, id) }
    }

    #[test]
    fn a_password_is_hashed_as_zookeeper_does() {
        assert_eq!(digest_id("super:admin").id, "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=");
        assert_eq!((base64(b""), base64(b"f"), base64(b"fo"), base64(b"foo")), ("".into(), "Zg==".into(), "Zm8=".into(), "Zm9v".into()));
    }

    #[test]
    fn an_acl_allows_what_it_says_to_whom_it_says() {
        let acl = [line(READ, "world", "anyone"), line(WRITE, "ip", "10.1.0.0/16"), line(ALL, "digest", "u:h")];
        let (near, far) = ([Id::new("ip", "10.1.2.3")], [Id::new("ip", "10.2.2.3")]);
        assert_eq!(check(&acl, READ, &far), Ok(()));
        assert_eq!(check(&acl, WRITE, &near), Ok(()));
        assert_eq!(check(&acl, WRITE, &far), Err(ErrorCode::NoAuth));
        assert_eq!(check(&acl, ADMIN, &[Id::new("digest", "u:h")]), Ok(()));
        assert_eq!(check(&acl, ADMIN, &[Id::new("x509", "u:h")]), Err(ErrorCode::NoAuth));
        assert_eq!(check(&acl, ADMIN, &[superuser()]), Ok(()));
        assert_eq!(check(&[line(ALL, "ip", "::/0")], READ, &[Id::new("ip", "::1")]), Ok(()));
    }

    #[test]
    fn a_request_looks_at_each_acl_once_and_at_so_many_lines() {
        let who = [Id::new("ip", "10.1.2.3")];
        let long =
            || AclLines::new((0..1_024).map(|number| line(READ, "ip", &format!("10.{}.{}.0/24", number / 256, number % 256))).collect());
        let (acl, mut checks) = (long(), Checks::new(&who));
        for _ in 0..10_000 {
            assert_eq!(checks.check(&acl, READ), Ok(()));
            assert_eq!(checks.check(&acl, WRITE), Err(ErrorCode::NoAuth));
        }
        assert_eq!(checks.lines(), 1_023);
        let others: Vec<AclLines> = (0..CHECKED_LINES_MAX / 1_023 + 1).map(|_| long()).collect();
        let checked: Vec<Result<(), ErrorCode>> = others.iter().map(|acl| checks.check(acl, READ)).collect();
        assert_eq!(checked.iter().filter(|checked| checked.is_ok()).count(), CHECKED_LINES_MAX / 1_023);
        assert_eq!(checked.last(), Some(&Err(ErrorCode::MarshallingError)));
        assert_eq!(checks.check(&open(), READ), Ok(()), "what needs no look is allowed as before");
    }

    #[test]
    fn an_acl_is_resolved_or_refused() {
        let shown = [Id::new("ip", "1.2.3.4"), Id::new("digest", "u:h")];
        let auth = [line(READ, "auth", ""), line(READ, "auth", "")];
        assert_eq!(resolve(&auth, &shown).as_deref(), Ok(&vec![line(READ, "digest", "u:h")]));
        assert_eq!(resolve(&auth, &shown[..1]), Err(ErrorCode::InvalidAcl), "an address is nothing that one shows");
        for bad in [("world", "me"), ("digest", "u"), ("digest", "u:"), ("ip", "1.2.3"), ("ip", "1.2.3.4/33"), ("super", ""), ("x509", "")]
        {
            assert_eq!(resolve(&[line(READ, bad.0, bad.1)], &shown), Err(ErrorCode::InvalidAcl), "{bad:?}");
        }
        assert_eq!(resolve(&[], &shown), Err(ErrorCode::InvalidAcl));
    }
}
