//! What a package brings beside the command: manual pages and completions.

mod manual;
