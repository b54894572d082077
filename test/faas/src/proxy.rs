//! The HTTP side: `/NAME/…` goes to the function of this name, `/-/stats` says what there is.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, timeout_at};

use crate::backend::Backend;
use crate::gateway::{Gateway, Visit};
use crate::policy::Refusal;

/// Clients at the same time. Further ones wait to be accepted.
const CLIENTS: usize = 4096;
/// For a client to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// After accept fails, as it does when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// For the gateway to learn of the end of a function that does not take connections.
const DEATH_PAUSE: Duration = Duration::from_millis(20);

/// Headers about one connection, which are not passed on.
const OF_CONNECTION: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("te"),
    HeaderName::from_static("transfer-encoding"),
    HeaderName::from_static("upgrade"),
];

type Answer<B> = Response<Either<Full<Bytes>, FunctionBody<B>>>;

/// Serves clients for ever.
pub async fn serve<B: Backend>(gateway: Arc<Gateway<B>>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(&gateway, request));
            // What goes wrong here is the client's connection, and nobody is there to be told.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(place);
        });
    }
}

async fn answer<B: Backend>(
    gateway: &Arc<Gateway<B>>,
    request: Request<Incoming>,
) -> Result<Answer<B>, Infallible> {
    if request.uri().path() == "/-/stats" {
        let text = format!("{:#}\n", gateway.stats());
        return Ok(written(StatusCode::OK, "application/json", text));
    }
    Ok(pass_on(gateway, request).await.unwrap_or_else(|failure| {
        written(failure.status, "text/plain; charset=utf-8", format!("{}\n", failure.sentence))
    }))
}

fn written<B: Backend>(status: StatusCode, kind: &'static str, text: String) -> Answer<B> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The status and the sentence that the client gets instead of an answer.
struct Failure {
    status: StatusCode,
    sentence: String,
}

impl Failure {
    fn bad_gateway(sentence: String) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, sentence }
    }

    fn of(name: &str, refusal: Refusal) -> Self {
        match refusal {
            Refusal::Busy => Self {
                status: StatusCode::SERVICE_UNAVAILABLE,
                sentence: format!("too many requests wait for the function {name}; try again later"),
            },
            Refusal::NotStarted { why } => {
                Self::bad_gateway(format!("the function {name} cannot be started: {why}"))
            }
        }
    }
}

async fn pass_on<B: Backend>(
    gateway: &Arc<Gateway<B>>,
    request: Request<Incoming>,
) -> Result<Answer<B>, Failure> {
    let (name, rest) = split(request.uri());
    let Some(function) = gateway.config().functions.iter().position(|one| one.name == name) else {
        // Not what was asked for, which may be anything.
        return Err(Failure {
            status: StatusCode::NOT_FOUND,
            sentence: "there is no such function".to_owned(),
        });
    };
    let name = gateway.config().functions[function].name.clone();
    let timeout = gateway.config().request_timeout;
    let request = stripped(request, rest);
    let (visit, stream) = reach(gateway, function, &name).await?;
    let deadline = Instant::now() + timeout;
    let late = |_| Failure {
        status: StatusCode::GATEWAY_TIMEOUT,
        sentence: format!("the function {name} gives no answer in {} s", timeout.as_secs()),
    };
    let answer = timeout_at(deadline, exchange(stream, request)).await.map_err(late)?;
    let (mut parts, body) = answer
        .map_err(|error| Failure::bad_gateway(format!("the function {name} gives no whole answer: {error}")))?
        .into_parts();
    remove_of_connection(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let body = FunctionBody {
        inner: body,
        visit: Some(visit),
        deadline: Box::pin(tokio::time::sleep_until(deadline)),
    };
    Ok(Response::from_parts(parts, Either::Right(body)))
}

/// The name in a path, and what the function is asked for. Paths begin with a slash, but for `*` of `OPTIONS`.
fn split(uri: &Uri) -> (&str, String) {
    let path = uri.path().strip_prefix('/').unwrap_or_default();
    let (name, rest) = path.split_once('/').unwrap_or((path, ""));
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    (name, format!("/{rest}{query}"))
}

/// The request as the function gets it.
fn stripped(request: Request<Incoming>, rest: String) -> Request<Incoming> {
    let (mut parts, body) = request.into_parts();
    remove_of_connection(&mut parts.headers);
    parts.version = Version::HTTP_11;
    // Parts of a URI that was read are right in another one.
    parts.uri = Uri::try_from(rest).unwrap_or_default();
    Request::from_parts(parts, body)
}

fn remove_of_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        headers.remove(name);
    }
}

/// A connection to a function that is ready for the request.
async fn reach<B: Backend>(
    gateway: &Arc<Gateway<B>>,
    function: usize,
    name: &str,
) -> Result<(Visit<B>, TcpStream), Failure> {
    let timeout = gateway.config().request_timeout;
    let port = gateway.config().functions[function].port;
    let mut is_second = false;
    loop {
        let mut visit = gateway.visit(function).await.map_err(|refusal| Failure::of(name, refusal))?;
        let connect = async {
            visit.take_turn().await;
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await
        };
        let connected = tokio::time::timeout(timeout, connect).await.map_err(|_| Failure {
            status: StatusCode::GATEWAY_TIMEOUT,
            sentence: format!("the function {name} takes no connection in {} s", timeout.as_secs()),
        })?;
        match connected {
            Ok(stream) => return Ok((visit, stream)),
            // It may have died, which the gateway is about to learn: it has seen nothing of the request yet.
            Err(_) if !is_second => is_second = true,
            Err(error) => {
                return Err(Failure::bad_gateway(format!(
                    "the function {name} takes no connection: {error}"
                )));
            }
        }
        drop(visit);
        tokio::time::sleep(DEATH_PAUSE).await;
    }
}

async fn exchange(stream: TcpStream, request: Request<Incoming>) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer's body; its errors are that one's, too.
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// An answer's body. The function serves the request until this has come to its end, or its deadline.
struct FunctionBody<B: Backend> {
    inner: Incoming,
    visit: Option<Visit<B>>,
    deadline: Pin<Box<Sleep>>,
}

impl<B: Backend> Body for FunctionBody<B> {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err("the function takes too long for its answer".into())));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            self.visit = None;
        }
        polled.map(|frame| frame.map(|result| result.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_function_and_what_it_is_asked_for() {
        for (path, name, rest) in [
            ("/a/b/c?d=e", "a", "/b/c?d=e"),
            ("/a", "a", "/"),
            ("/a?x", "a", "/?x"),
            ("/", "", "/"),
            ("//a", "", "/a"),
            ("http://host/a/b", "a", "/b"),
            ("*", "", "/"),
        ] {
            assert_eq!(split(&path.parse().unwrap()), (name, rest.to_owned()), "{path}");
        }
    }

    #[test]
    fn headers_about_one_connection_go() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("connection", "close, X-Mine"), ("x-mine", "1"), ("te", "trailers"), ("accept", "a")]
        {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove_of_connection(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
