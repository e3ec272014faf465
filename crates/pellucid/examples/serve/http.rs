//! The HTTP interface.

use crate::Tokenizer;
use crate::latency::Latencies;
use crate::worker::Job;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The maximum body size of a request in bytes.
const MAX_BODY: usize = 1 << 20;

/// The maximum number of texts per request.
const MAX_TEXTS: usize = 256;

/// The state that request handlers share.
pub(crate) struct Service {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) jobs: SyncSender<Job>,
    pub(crate) timeout: Duration,
    pub(crate) latencies: Arc<Latencies>,
}

/// Answers requests until `stop` is ready, then the remaining received requests.
pub(crate) async fn serve(
    listener: TcpListener,
    service: Service,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/embed", post(embed))
        .route("/latency", get(async |State(service): State<Arc<Service>>| reply(service.latencies.summary())))
        .with_state(Arc::new(service));
    axum::serve(listener, app).with_graceful_shutdown(stop).await
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) async fn stop_signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).expect("the signal SIGTERM must be available");
        tokio::select! {
            _ = interrupt => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = interrupt.await;
}

/// The status and the message of a rejected request.
type Rejection = (StatusCode, String);

fn reply(value: Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn embed(State(service): State<Arc<Service>>, request: Request) -> Response {
    let start = Instant::now();
    // The timeout includes the time of a slow client.
    let answered = match timeout(service.timeout, embeddings(&service, request.into_body())).await {
        Ok(answered) => answered,
        Err(_) => Err((StatusCode::GATEWAY_TIMEOUT, format!("no answer within {:?}", service.timeout))),
    };
    match answered {
        Ok(value) => {
            service.latencies.add(start.elapsed());
            reply(value)
        }
        Err((status, reason)) => (status, reply(json!({ "error": reason }))).into_response(),
    }
}

async fn embeddings(service: &Service, body: Body) -> Result<Value, Rejection> {
    let body = to_bytes(body, MAX_BODY).await.map_err(|error| {
        (StatusCode::PAYLOAD_TOO_LARGE, format!("the body must have at most {MAX_BODY} bytes: {error}"))
    })?;
    let ids = token_ids(&service.tokenizer, &body).map_err(|reason| (StatusCode::BAD_REQUEST, reason))?;
    let tokens: Vec<usize> = ids.iter().map(Vec::len).collect();
    let mut answers = Vec::new();
    for ids in ids {
        let (reply, answer) = oneshot::channel();
        service.jobs.try_send(Job { ids, reply }).map_err(|error| match error {
            TrySendError::Full(_) => (StatusCode::SERVICE_UNAVAILABLE, "too many requests are waiting".to_string()),
            TrySendError::Disconnected(_) => internal("the encoder has stopped"),
        })?;
        answers.push(answer);
    }
    let mut embeddings = Vec::new();
    for answer in answers {
        let answered = answer.await.map_err(|_| internal("the encoder has stopped"))?;
        embeddings.push(answered.map_err(|reason| internal(&reason))?);
    }
    Ok(json!({ "embeddings": embeddings, "tokens": tokens }))
}

fn internal(reason: &str) -> Rejection {
    (StatusCode::INTERNAL_SERVER_ERROR, reason.to_string())
}

/// Returns the token ids of the texts of a request, or the reason why the request is invalid.
fn token_ids(tokenizer: &Tokenizer, body: &[u8]) -> Result<Vec<Vec<i64>>, String> {
    let request: Value = serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
    let texts = request["texts"].as_array().ok_or("the body must be {\"texts\": [\"..\", ..]}")?;
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        return Err(format!("a request must contain 1 to {MAX_TEXTS} texts, got {}", texts.len()));
    }
    let truncate = match &request["truncate"] {
        Value::Null => true,
        Value::Bool(truncate) => *truncate,
        other => return Err(format!("truncate must be true or false, got {other}")),
    };
    let one = |(i, text): (usize, &Value)| {
        let text = text.as_str().ok_or(format!("text {i} must be a string, got {text}"))?;
        tokenizer.ids(text, truncate).map_err(|tokens| {
            format!("text {i} has {tokens} tokens; the model accepts {}, unless truncate is true", tokenizer.max_length)
        })
    };
    texts.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bert::Bert;
    use crate::{inference_model, worker};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::path::Path;
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::thread;

    fn directory() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny_bert"))
    }

    /// Sends a request and returns the status and the body of the response.
    fn send(to: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(to).unwrap();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Runs `client` against a server with a queue of two texts; `work` processes them.
    fn with_server<R>(
        limit: Duration,
        work: impl FnOnce(Receiver<Job>) + Send + 'static,
        client: impl FnOnce(SocketAddr) -> R,
    ) -> R {
        let (sender, jobs) = sync_channel(2);
        let worker = thread::spawn(move || work(jobs));
        let (stop, stopped) = oneshot::channel::<()>();
        let tokenizer = Tokenizer::load(directory(), 24).unwrap();
        let service = Service { tokenizer, jobs: sender, timeout: limit, latencies: Arc::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let stopped = async { drop(stopped.await) };
            runtime.block_on(serve(listener, service, stopped)).unwrap();
        });
        let result = client(address);
        stop.send(()).unwrap();
        // A clean shutdown ends the server, which ends the worker.
        server.join().unwrap();
        worker.join().unwrap();
        result
    }

    #[test]
    fn requests_are_answered_with_the_embeddings_of_their_texts() {
        let work = |jobs: Receiver<Job>| {
            let mut encoder = inference_model(Bert::load(directory()).unwrap(), 24);
            worker::run(&mut encoder, &jobs, 8, Duration::from_millis(1));
        };
        with_server(Duration::from_secs(60), work, |to| {
            let (status, found) = send(to, "POST", "/embed", r#"{"texts": ["A cat sat on the mat.", ""]}"#);
            assert_eq!((status, &found["tokens"]), (200, &json!([9, 2])), "{found}");
            let expected = std::fs::read_to_string(directory().join("expected.json")).unwrap();
            let expected: Value = serde_json::from_str(&expected).unwrap();
            for (row, own) in [(0, 0), (3, 1)] {
                let [a, b] = [&expected["embeddings"][row], &found["embeddings"][own]].map(|v| v.as_array().unwrap());
                assert_eq!(a.len(), b.len());
                let near = |(a, b): (&Value, &Value)| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4;
                assert!(a.iter().zip(b).all(near), "{own}");
            }
            for (body, part) in [
                ("{", "not JSON"),
                ("[]", "texts"),
                (r#"{"texts": []}"#, "1 to 256"),
                (r#"{"texts": [1]}"#, "string"),
                (r#"{"texts": ["a"], "truncate": 1}"#, "truncate"),
            ] {
                let (status, rejected) = send(to, "POST", "/embed", body);
                assert_eq!(status, 400, "{body}");
                assert!(rejected["error"].as_str().unwrap().contains(part), "{rejected}");
            }
            let long = format!(r#"{{"texts": ["{}"], "truncate": false}}"#, "cat ".repeat(30));
            assert_eq!(send(to, "POST", "/embed", &long).0, 400);
            let (status, found) = send(to, "POST", "/embed", &long.replace("false", "true"));
            assert_eq!((status, &found["tokens"]), (200, &json!([24])));
            assert_eq!(send(to, "POST", "/embed", &" ".repeat(MAX_BODY + 1)).0, 413);
            assert_eq!(send(to, "GET", "/embed", "").0, 405);
            assert_eq!(send(to, "GET", "/latency", "").1["requests"], 2);
        });
    }

    #[test]
    fn a_request_times_out_and_a_full_queue_rejects() {
        // The worker sends no answer until the server has stopped.
        let work = |jobs: Receiver<Job>| {
            let waiting: Vec<Job> = jobs.iter().collect();
            assert!(waiting.iter().all(|job| job.reply.is_closed()));
        };
        let limit = Duration::from_millis(50);
        assert_eq!(with_server(limit, work, |to| send(to, "POST", "/embed", r#"{"texts": ["a"]}"#).0), 504);
        // The worker leaves the queue full.
        let (done, waits) = sync_channel::<()>(0);
        let work = move |jobs: Receiver<Job>| drop((waits.recv(), jobs));
        let status = with_server(Duration::from_secs(60), work, |to| {
            let status = send(to, "POST", "/embed", r#"{"texts": ["a", "a", "a"]}"#).0;
            drop(done);
            status
        });
        assert_eq!(status, 503);
    }
}
