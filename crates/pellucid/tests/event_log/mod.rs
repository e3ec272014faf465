//! A `tracing` subscriber that stores the events of this project, for tests.

use std::sync::{Arc, Mutex};

/// Stores the fields of every event as a string.
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("pellucid") && *metadata.level() <= tracing::Level::DEBUG
    }
    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field} {value:?}; ");
            }
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let level = event.metadata().level();
        self.0.lock().unwrap().push(format!("{level} {}", fields.0));
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Runs `f` with a subscriber, and returns its events.
pub(crate) fn events(f: impl FnOnce()) -> Vec<String> {
    let log = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Log(log.clone()), f);
    std::mem::take(&mut *log.lock().unwrap())
}

/// Asserts that each event, in order, contains the expected substrings.
#[track_caller]
pub(crate) fn assert_events(log: &[String], expected: &[&[&str]]) {
    let fits = |(event, parts): (&String, &&[&str])| parts.iter().all(|part| event.contains(part));
    assert!(log.len() == expected.len() && log.iter().zip(expected).all(fits), "{log:#?}");
}
