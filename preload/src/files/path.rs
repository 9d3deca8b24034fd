//! Paths: whether a path is of the tree, and the names of a file inside and outside of the tree.

use std::ffi::CStr;

/// Longest path of the kernel, with its null byte, in bytes.
pub(super) const PATH_BYTES: usize = libc::PATH_MAX as usize;

/// Returns whether the tree has the file `path`: `path` is absolute and is, or is below, /sys/class/infiniband,
/// /sys/class/infiniband_verbs or /dev/infiniband. Empty components and `.` are skipped. A `..` after these three names
/// their parent, which the tree does not have; a later `..` is left to the kernel.
pub(super) fn is_of_tree(path: &[u8]) -> bool {
    if path.first() != Some(&b'/') {
        return false;
    }
    let mut components = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let is_of_tree = match (components.next(), components.next()) {
        (Some(b"sys"), Some(b"class")) => {
            matches!(components.next(), Some(b"infiniband" | b"infiniband_verbs"))
        }
        (Some(b"dev"), Some(b"infiniband")) => true,
        _ => false,
    };
    is_of_tree && components.next() != Some(b"..")
}

/// Writes `tree` and `path` to `buffer`: the name of `path` in the tree. Returns `None` if the name is longer than a path
/// may be.
pub(super) fn in_tree<'a>(tree: &[u8], path: &[u8], buffer: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let (begin, rest) = buffer.split_at_mut_checked(tree.len())?;
    let (middle, end) = rest.split_at_mut_checked(path.len())?;
    begin.copy_from_slice(tree);
    middle.copy_from_slice(path);
    *end.first_mut()? = 0;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// Returns the name outside of the tree of `path`, a file in the tree; `None` if `path` is not in the tree.
pub(super) fn outside<'a>(tree: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(tree)? {
        b"" => Some(b"/"),
        rest => rest.starts_with(b"/").then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_tree_are_told_by_whole_components() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/roce0/ports/1/gids/0",
            "//sys///class/./infiniband//roce0",
            "/./sys/class/infiniband/.",
            "/sys/class/infiniband/roce0/..",
            "/sys/class/infiniband/roce0/../..",
            "/sys/class/infiniband_verbs/abi_version",
            "/dev/infiniband",
            "/dev/infiniband/uverbs_roce0",
        ] {
            assert!(is_of_tree(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/",
            "//",
            "sys/class/infiniband",
            "./sys/class/infiniband",
            "/sys",
            "/sys/class",
            "/sys/class/",
            "/sys/class/infiniban",
            "/sys/class/infiniband0",
            "/sys/class/infiniband_verbs0",
            "/sys/class/infiniband_mad",
            "/sys/class/net/infiniband",
            "/sys/classes/infiniband",
            "/sys/infiniband",
            "/sys/class/net/../infiniband",
            "/sys/class/infiniband/../net",
            "/dev/infiniband/..",
            "/dev/infinibands",
            "/dev",
            "/dev/null",
            "/device/infiniband",
            "/tmp/sys/class/infiniband",
        ] {
            assert!(!is_of_tree(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_name_in_the_tree_has_at_most_the_length_of_a_path() {
        let mut buffer = [1; PATH_BYTES];
        let name = in_tree(b"/tmp/tree", b"/dev/infiniband", &mut buffer);
        assert_eq!(name, Some(c"/tmp/tree/dev/infiniband"));
        let path = [b'/'; PATH_BYTES];
        for (tree, path, fits) in [
            (&path[..9], &path[..PATH_BYTES - 10], true),
            (&path[..9], &path[..PATH_BYTES - 9], false),
            (&path[..9], &path[..PATH_BYTES - 8], false),
            (&path[..9], &path[..], false),
            (&path[..], &path[..0], false),
            (&path[..], &path[..], false),
        ] {
            let name = in_tree(tree, path, &mut buffer);
            let len = name.map(|name| name.count_bytes());
            assert_eq!(len, fits.then_some(PATH_BYTES - 1), "{} and {}", tree.len(), path.len());
        }
    }

    #[test]
    fn a_file_in_the_tree_has_its_name_outside() {
        let outside = |path| outside(b"/tmp/tree", path);
        assert_eq!(outside(b"/tmp/tree/dev/infiniband"), Some(&b"/dev/infiniband"[..]));
        assert_eq!(outside(b"/tmp/tree"), Some(&b"/"[..]));
        for path in [&b"/tmp/trees/dev"[..], b"/tmp/tre", b"/tmp", b"/dev/null", b""] {
            assert_eq!(outside(path), None);
        }
    }
}
