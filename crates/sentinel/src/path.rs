//! Paths of nodes.

/// The root.
pub(crate) const ROOT: &str = "/";
/// What the service itself keeps.
pub(crate) const SERVICE: &str = "/zookeeper";
/// Where limits of subtrees are kept.
pub(crate) const QUOTA: &str = "/zookeeper/quota";
/// Who the members are.
pub(crate) const CONFIG: &str = "/zookeeper/config";

/// Nodes that are always there.
pub(crate) fn is_fixed(path: &str) -> bool {
    [ROOT, SERVICE, QUOTA, CONFIG].contains(&path)
}

/// The path of the parent and the name within it. The root has no parent; of a path without slash there is none either.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let slash = path.rfind('/')?;
    let parent = if slash == 0 { ROOT } else { &path[..slash] };
    (path != ROOT).then(|| (parent, &path[slash + 1..]))
}

/// The path itself and then each one above it, up to the root.
pub(crate) fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(split(path)?.0))
}

/// Whether a node may have this path: the rules are ZooKeeper's, which counts in UTF-16 and so allows nothing beyond its first plane.
pub(crate) fn is_valid(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let allowed = |letter: char| {
        !matches!(letter, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}') && letter <= '\u{ffff}'
    };
    rest.is_empty() || (rest.split('/').all(|name| !matches!(name, "" | "." | "..")) && rest.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_valid_as_zookeeper_says() {
        for good in ["/", "/a", "/a/b", "/a.b", "/...", "/.a", "/ß/日本", "/a b"] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "a", "//", "/a/", "/a//b", "/.", "/a/..", "/a/./b", "/a\0", "/\u{1f}", "/\u{e000}", "/\u{fff0}", "/\u{1f600}"] {
            assert!(!is_valid(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_path_leads_up_to_the_root() {
        assert_eq!(upwards("/a/b").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!((split("/"), split("a")), (None, None));
        assert_eq!(split("a/b"), Some(("a", "b")), "which is no node's path, so that its parent is not found");
    }
}
