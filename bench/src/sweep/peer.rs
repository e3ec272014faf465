//! The process that times PyTorch expressions, one line per turn.

use serde_json::Value;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running `sweep.py`.
pub(super) struct PeerProcess {
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl PeerProcess {
    /// Starts a command.
    pub(super) fn start(command: &str) -> Result<PeerProcess> {
        let mut words = command.split_whitespace();
        let program = words.next().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the command is empty"))?;
        let mut process = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let gone = || Error::new(ErrorKind::BrokenPipe, "the process of the peer has no pipes");
        let requests = process.stdin.take().ok_or_else(gone)?;
        let replies = BufReader::new(process.stdout.take().ok_or_else(gone)?);
        Ok(PeerProcess { process, requests, replies })
    }

    /// Returns the microseconds per call, or the reason why the expression cannot be computed.
    pub(super) fn time(&mut self, description: &Value) -> Result<std::result::Result<f64, String>> {
        writeln!(self.requests, "{description}")?;
        self.requests.flush()?;
        let mut reply = String::new();
        self.replies.read_line(&mut reply)?;
        let reply: Value = serde_json::from_str(&reply)?;
        Ok(match reply["us"].as_f64() {
            Some(us) => Ok(us),
            None => Err(reply["error"].as_str().unwrap_or("no reply").to_string()),
        })
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
