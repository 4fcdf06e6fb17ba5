//! Who may do what.
//!
//! A connection is known by its address, and by what its client has shown: a user and password (`digest`), or a certificate (`x509`).
//! Of a password only its hash is kept, which is what stands in ACLs.

use std::net::IpAddr;
use std::sync::Arc;

use jute::{Acl, ErrorCode, Id};
use sha1::{Digest as _, Sha1};

use crate::limits::ACL_LINES_MAX;
use crate::node::AclLines;

/// May do everything.
const SUPER: &str = "super";

/// Everybody may do everything.
pub(crate) fn open() -> AclLines {
    Arc::new(vec![Acl::open()])
}

/// Whether `who` may do any of `wanted`.
///
/// # Errors
/// [`ErrorCode::NoAuth`].
pub(crate) fn check(acl: &[Acl], wanted: i32, who: &[Id]) -> Result<(), ErrorCode> {
    let allows = |line: &Acl| line.permissions & wanted != 0 && (is_anyone(&line.id) || who.iter().any(|id| is_meant(&line.id, id)));
    let allowed = acl.is_empty() || who.iter().any(|id| id.scheme == SUPER) || acl.iter().any(allows);
    if allowed { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

fn is_anyone(id: &Id) -> bool {
    id.scheme == "world" && id.id == "anyone"
}

/// Whether an ACL's `line` means `id`.
fn is_meant(line: &Id, id: &Id) -> bool {
    if line.scheme != id.scheme {
        return false;
    }
    match line.scheme.as_str() {
        "ip" => Network::parse(&line.id).zip(id.id.parse().ok()).is_some_and(|(network, address)| network.contains(address)),
        "digest" | "x509" => line.id == id.id,
        _ => false,
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
