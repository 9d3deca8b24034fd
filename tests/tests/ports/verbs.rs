//! The verbs, in this process.
