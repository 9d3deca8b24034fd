//! Directories for run-time files, in places where other users may write.

use std::fs::{self, DirBuilder, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Returns the stand-in for a missing `XDG_RUNTIME_DIR`; [`crate::Eal::init`] makes it, and sets the
/// variable.
pub fn stand_in_runtime_dir(uid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("dpdk-runtime-{uid}"))
}

/// Makes `path` a directory private to `uid`, or checks that it is one, because other users may write to its
/// parent.
///
/// # Errors
/// The parent is missing or closed; or `path` is no directory, is a link, belongs to another user, or is open
/// to others.
pub fn private_dir(path: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if is_private_dir(&fs::symlink_metadata(path)?, uid) {
        return Ok(());
    }
    let reason = format!("it exists, and is not a directory of user {uid} alone");
    Err(io::Error::new(ErrorKind::PermissionDenied, reason))
}

/// Whether `metadata`, not read through a link, is of a directory of `uid` that is closed to others.
pub fn is_private_dir(metadata: &Metadata, uid: u32) -> bool {
    metadata.is_dir() && metadata.uid() == uid && metadata.mode() & 0o077 == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        // SAFETY: always succeeds.
        let uid = unsafe { libc::geteuid() };
        let path = std::env::temp_dir().join(format!("dpdk-ffi-runtime-test-{}", std::process::id()));
        private_dir(&path, uid).unwrap();
        private_dir(&path, uid).expect("its own directory again");
        assert!(private_dir(&path, uid + 1).is_err());
        let link = path.join("link");
        symlink(&path, &link).unwrap();
        assert!(private_dir(&link, uid).is_err());
        assert!(private_dir(&path.join("no/such"), uid).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_dir(&path, uid).is_err());
        fs::remove_dir_all(&path).unwrap();
    }
}
