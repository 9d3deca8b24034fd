//! Limits of the process that are too low. One test, because a limit applies to the whole process.

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use verbs::{Access, Context, DESCRIPTORS_PER_DEVICE, DeviceOptions, Error, OpenError, TooFewDescriptors};

fn open(port: &str) -> Result<Context, OpenError> {
    Context::open(&port.parse().unwrap(), &DeviceOptions::default())
}

fn limit(resource: Resource, current: u64) {
    setrlimit(resource, Rlimit { current: Some(current), ..getrlimit(resource) }).unwrap();
}

fn names_the_limit(error: &str, limited: TooFewDescriptors) {
    for part in [
        format!("needs {} file descriptors", limited.needed),
        format!("has {} open", limited.open),
        format!("may have {} (RLIMIT_NOFILE)", limited.limit),
        "`ulimit -n 1024`; systemd: LimitNOFILE=1024; docker run --ulimit nofile=1024".to_owned(),
    ] {
        assert!(error.contains(&part), "`{error}` without `{part}`");
    }
}

#[test]
fn errors_name_the_limit_that_is_too_low() {
    let port = format!("memif:@verbs-limits-{}", std::process::id());
    limit(Resource::Nofile, DESCRIPTORS_PER_DEVICE);
    let error = open(&port).err().unwrap();
    let OpenError::TooFewDescriptors(limited) = error else { panic!("{error}") };
    let (needed, limit_now) = (DESCRIPTORS_PER_DEVICE, DESCRIPTORS_PER_DEVICE);
    assert_eq!((limited.needed, limited.limit), (needed, limit_now));
    assert!(limited.open > 0 && limited.open < limit_now, "{limited}");
    names_the_limit(&error.to_string(), limited);

    // A device opens with `needed` further descriptors, and without locked memory. The limit is raised step by
    // step, because some descriptors of this process may have numbers above the limit.
    limit(Resource::Memlock, 0);
    let raised = (limited.open + needed..).find_map(|files| {
        limit(Resource::Nofile, files);
        open(&port).ok().map(|context| (context, files))
    });
    let (context, files) = raised.unwrap();
    let pd = context.alloc_pd().unwrap();
    pd.alloc(1 << 20, Access::LOCAL_WRITE).unwrap();

    // EAL raises the limit if EAL uses hugepages, so the limit is set again.
    limit(Resource::Nofile, files);
    let others: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!others.is_empty(), "the device needs fewer files");
    let limited = TooFewDescriptors { what: "a completion channel", needed: 1, open: files, limit: files };
    let error = context.create_comp_channel().err().unwrap();
    assert!(matches!(error, Error::TooFewDescriptors(other) if other == limited), "{error}");
    names_the_limit(&error.to_string(), limited);
    names_the_limit(&open(&port).err().unwrap().to_string(), limited);
    drop(others);
    context.create_comp_channel().unwrap();
}
