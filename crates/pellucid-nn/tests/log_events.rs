//! Log events, in a process of their own, since `tracing` caches for all threads whether an event is enabled.

use pellucid_nn::Linear;
use pellucid_nn::loss::{MseLoss, Reduction, infer_grad_scale};
use pellucid_tensor::{DType, Tensor};
use std::sync::{Arc, Mutex};

/// Keeps the fields of every event as text.
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        matches!(*metadata.level(), tracing::Level::INFO | tracing::Level::WARN)
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
        self.0.lock().unwrap().push(fields.0);
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn the_grad_scale_is_logged() {
    let (model, x, y) = (Linear::new(2, 2), Tensor::randn([4, 2], DType::F32), Tensor::zeros([4, 2], DType::F32));
    let log = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Log(log.clone()), || {
        infer_grad_scale(&MseLoss { reduction: Reduction::Sum }, &model, &x, &y).unwrap();
    });
    let log = log.lock().unwrap();
    assert!(matches!(&log[..], [event] if event.contains("kind Sum; scale 0.25; batch 4;")), "{log:?}");
}
