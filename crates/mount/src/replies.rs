//! Answers to the kernel that several requests share.

use fuser::{Errno, ReplyEmpty, ReplyXattr};

use crate::errors::Answer;

/// Answers that a request is done, or its error.
pub(crate) fn reply_done(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Answers with the value of an extended attribute, or with its length if the program gave no memory for it.
pub(crate) fn reply_extended(found: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match found {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error),
    }
}
