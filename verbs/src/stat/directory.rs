//! Directories of the statistics sockets.
//!
//! A device uses the first of `$XDG_RUNTIME_DIR/roce`, `/run/user/UID/roce` and `/tmp/roce-UID` that exists or can be
//! created. UID is the effective user ID of the process. A path is not used if it is a symbolic link, or a directory
//! that belongs to another user or is accessible to another user. Otherwise another user could create `/tmp/roce-UID`
//! first and replace the sockets.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use dpdk_ffi::{is_private_dir, private_dir, stand_in_runtime_dir};

/// Parent of the runtime directories of logged-in users; the name of each runtime directory is the user ID.
const RUNTIME: &str = "/run/user";
const SHARED: &str = "/tmp";
const NAME: &str = "roce";

/// A user whose directories of statistics sockets are looked up.
pub(super) struct User {
    pub(super) uid: u32,
    /// The user's `XDG_RUNTIME_DIR`; `None` if unset, not absolute, or set by EAL.
    pub(super) runtime: Option<PathBuf>,
}

impl User {
    pub(super) fn current() -> Self {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let uid = rustix::process::geteuid().as_raw();
        // If `XDG_RUNTIME_DIR` is missing, EAL sets the variable to a path that readers of statistics do not search. A
        // socket in this path would not be found, so a value set by EAL is ignored.
        let is_given = |path: &PathBuf| path.is_absolute() && *path != stand_in_runtime_dir(uid);
        User { uid, runtime: runtime.filter(is_given) }
    }

    /// Returns the directories that may have statistics sockets of the user, the preferred directory first.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        let mut places: Vec<PathBuf> = self.runtime.iter().map(|runtime| runtime.join(NAME)).collect();
        places.push(Path::new(RUNTIME).join(self.uid.to_string()).join(NAME));
        places.push(Path::new(SHARED).join(format!("{NAME}-{}", self.uid)));
        places.dedup();
        places
    }

    /// Returns the first of `directories` that exists or can be created, and to which no other user has access.
    pub(super) fn make_directory(&self) -> io::Result<PathBuf> {
        let mut result = Err(ErrorKind::NotFound.into());
        for directory in self.directories() {
            result = private_dir(&directory, self.uid).map(|()| directory);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

/// Returns the directory for run-time files of this process's user, which is created if it does not exist:
/// `$XDG_RUNTIME_DIR/roce`, `/run/user/UID/roce` or `/tmp/roce-UID`. No other user has access to the directory. UID is
/// the effective user ID.
///
/// # Errors
/// None of the three is, or can be created as, a directory of this user to which no other user has access.
pub fn private_directory() -> io::Result<PathBuf> {
    User::current().make_directory()
}

/// Returns the directories from which `user` reads statistics sockets, each with the user ID of its owner. Root reads
/// the directories of all users. Directories to which a user other than the owner has access are not returned.
pub(super) fn to_read(user: &User) -> Vec<(PathBuf, u32)> {
    let mut places = user.directories();
    if user.uid == 0 {
        let inside = |parent: &str| fs::read_dir(parent).into_iter().flatten().flatten();
        places.extend(inside(RUNTIME).map(|entry| entry.path().join(NAME)));
        let is_named = |name: &str| name.strip_prefix(NAME).is_some_and(|rest| rest.starts_with('-'));
        let shared = inside(SHARED).filter(|entry| entry.file_name().to_str().is_some_and(is_named));
        places.extend(shared.map(|entry| entry.path()));
        places.sort();
        places.dedup();
    }
    let owned = places.into_iter().filter_map(|place| {
        let metadata = fs::symlink_metadata(&place).ok()?;
        let owner = if user.uid == 0 { metadata.uid() } else { user.uid };
        is_private_dir(&metadata, owner).then_some((place, owner))
    });
    owned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_directory_is_preferred_and_made_private() {
        let root = std::env::temp_dir().join(format!("roce-stat-test-{}-private", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let user = User { uid: rustix::process::geteuid().as_raw(), runtime: Some(root.clone()) };
        let made = user.make_directory().unwrap();
        assert_eq!(made, root.join("roce"));
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        assert_eq!(user.make_directory().unwrap(), made, "it may be there already");
        assert!(to_read(&user).contains(&(made, user.uid)));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn without_a_runtime_directory_there_is_one_for_each_user() {
        let user = User { uid: 4711, runtime: None };
        let places = user.directories();
        assert_eq!(places, [Path::new("/run/user/4711/roce"), Path::new("/tmp/roce-4711")]);
        let runtime = Some(PathBuf::from("/run/user/4711"));
        assert_eq!(User { runtime, ..user }.directories(), places);
    }
}
