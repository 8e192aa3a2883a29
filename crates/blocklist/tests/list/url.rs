//! Tests of a list from a server: which responses replace the list in force, confirm it, or leave
//! it as it is.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread::JoinHandle,
    time::Duration,
};

use blocklist::{Error, ListUrl, MAX_BYTES, Reloaded, SharedBlocklist};

use super::{HOUR, LISTED_IN_A, SECOND, hourly, start};

const A: &str = "[\"0x00000000000000000000000000000000000000aa\"]";
const B: &str = "0x00000000000000000000000000000000000000bb\n";

/// A server that responds to one request after the other, each on its own connection.
struct Server {
    url: String,
    requests: JoinHandle<Vec<String>>,
}

impl Server {
    fn new(responses: impl IntoIterator<Item = String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let responses: Vec<String> = responses.into_iter().collect();
        let requests = std::thread::spawn(move || {
            let mut open = Vec::new();
            let serve = |response: String| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let request = head(&mut stream);
                stream.write_all(response.as_bytes()).expect("the client reads");
                // An empty response stands for a server that hangs.
                if response.is_empty() {
                    open.push(stream);
                }
                request
            };
            responses.into_iter().map(serve).collect()
        });
        Self { url: format!("http://127.0.0.1:{port}/lists/secret.json?key=secret"), requests }
    }

    /// Opens the list of the first response.
    fn open(&self) -> (ListUrl, SharedBlocklist) {
        let mut url = ListUrl::new(&self.url).expect("a server on this machine");
        let shared = SharedBlocklist::open_url(&mut url, hourly(), start()).expect("a good list");
        (url, shared)
    }

    /// Returns all requests after the last response.
    fn requests(self) -> Vec<String> {
        self.requests.join().expect("the server has not panicked")
    }
}

fn head(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a whole request");
        request.push(byte[0]);
    }
    String::from_utf8(request).expect("text").to_ascii_lowercase()
}

fn ok(headers: &str, body: &str) -> String {
    response("200 OK", headers, body)
}

fn not_modified() -> String {
    response("304 Not Modified", "", "")
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

#[test]
fn an_unchanged_list_is_confirmed_by_its_etag_and_not_resent() {
    let server = Server::new([
        ok("etag: \"v1\"\r\n", A),
        not_modified(),
        ok("etag: \"v2\"\r\n", B),
        not_modified(),
    ]);
    let (mut url, shared) = server.open();
    assert!(shared.current(start()).expect("fresh").contains(&LISTED_IN_A));
    let later = start() + HOUR;
    let hash = shared.current(start()).expect("fresh").hash();
    let confirmed = shared.reload_url(&mut url, later).expect("confirmed");
    assert_eq!(confirmed, Reloaded::Unchanged { hash });
    assert_eq!(shared.as_of(), later);
    assert!(shared.current(later + HOUR).is_ok(), "as new as its confirmation");
    let changed = shared.reload_url(&mut url, later).expect("a good list");
    assert!(matches!(changed, Reloaded::Changed { previous_hash, .. } if previous_hash == hash));
    let unchanged = shared.reload_url(&mut url, later).expect("confirmed");
    assert_eq!(unchanged, Reloaded::Unchanged { hash: changed.hash() });

    let requests = server.requests();
    let etags = requests.iter().map(|request| {
        request.lines().find_map(|line| line.strip_prefix("if-none-match: ")).map(str::to_owned)
    });
    let [v1, v2] = ["\"v1\"", "\"v2\""].map(|etag| Some(etag.to_owned()));
    assert_eq!(etags.collect::<Vec<_>>(), [None, v1.clone(), v1, v2]);
    assert!(requests.iter().all(|request| request.contains("cache-control: no-cache")));
}

#[test]
fn a_list_that_is_not_in_force_cannot_be_confirmed() {
    let server = Server::new([
        ok("etag: \"v1\"\r\n", A),
        not_modified(),
        ok("etag: \"v1\"\r\n", A),
        not_modified(),
    ]);
    let (mut url, shared) = server.open();
    shared.reload(B.as_bytes(), start(), start()).expect("a good list, from elsewhere");
    let reloaded = shared.reload_url(&mut url, start()).expect("sent whole");
    assert!(matches!(reloaded, Reloaded::Changed { .. }));
    assert!(shared.current(start()).expect("fresh").contains(&LISTED_IN_A));
    assert!(shared.reload_url(&mut url, start()).is_ok());
    let asked = |request: &String| request.contains("if-none-match");
    let asked: Vec<_> = server.requests().iter().map(asked).collect();
    assert_eq!(asked, [false, true, false, true]);
}

#[test]
fn a_bad_response_leaves_the_list_in_force_until_its_maximum_age() {
    let long = format!("{A}{}", " ".repeat(MAX_BYTES + 1 - A.len()));
    let bad = [
        response("404 Not Found", "", A),
        response("500 Internal Server Error", "", A),
        response("206 Partial Content", "", A),
        response("301 Moved Permanently", "location: http://127.0.0.1:1/\r\n", A),
        ok("etag: \"html\"\r\n", "<html>502 Bad Gateway</html>"),
        ok("", ""),
        ok("", &long),
        // The body is shorter than announced.
        ok("", A).replace(&format!("length: {}", A.len()), "length: 999"),
        "HTTP/1.1 200".to_owned(),
        "SSH-2.0-OpenSSH\r\n".to_owned(),
    ];
    let count = bad.len();
    let good = [ok("etag: \"v1\"\r\n", A)].into_iter();
    let server = Server::new(good.chain(bad).chain([not_modified()]));
    let (mut url, shared) = server.open();
    let later = start() + HOUR;
    for n in 0..count {
        let refused = shared.reload_url(&mut url, later).expect_err("no list");
        assert!(!format!("{refused}, {url:?}").contains("secret"), "{refused}");
        match (n, refused) {
            (0, Error::Status { status: 404, .. })
            | (1, Error::Status { status: 500, .. })
            | (2, Error::Status { status: 206, .. })
            | (3, Error::Status { status: 301, .. })
            | (4, Error::BadAddress { .. })
            | (5, Error::TooFew { .. })
            | (6, Error::TooLarge { max_bytes: MAX_BYTES, .. })
            | (7..=9, Error::Request { .. }) => {}
            (n, refused) => panic!("{n}: {refused:?}"),
        }
        assert!(shared.current(later).expect("still fresh").contains(&LISTED_IN_A));
        assert_eq!(shared.as_of(), start());
        assert!(matches!(shared.current(later + SECOND), Err(Error::Stale { .. })));
    }
    // The ETag of a refused text is not sent back, and the one of the last good list still is.
    assert!(shared.reload_url(&mut url, later + SECOND).is_ok());
    assert!(shared.current(later + SECOND).is_ok());
    assert!(server.requests().iter().all(|request| !request.contains("\"html\"")));
}

#[test]
fn a_request_to_a_server_that_hangs_fails_after_the_time_out() {
    let server = Server::new([ok("", A), String::new()]);
    let (url, shared) = server.open();
    let mut url = url.with_timeout(Duration::from_millis(50));
    let refused = shared.reload_url(&mut url, start());
    assert!(matches!(refused, Err(Error::Request { .. })), "{refused:?}");
    assert!(shared.current(start()).is_ok());
}

#[test]
fn a_response_from_a_cache_is_as_old_as_the_cache_says() {
    let server = Server::new([
        ok("age: 600\r\n", A),
        ok("age: 700\r\n", B),
        ok("age: 3601\r\n", A),
        // More than 64 bits.
        ok("age: 18446744073709551616\r\n", A),
    ]);
    let (mut url, shared) = server.open();
    assert_eq!(shared.as_of(), start() - 600 * SECOND);
    // The second response comes from another cache, which lags behind.
    let refused = shared.reload_url(&mut url, start());
    assert!(matches!(refused, Err(Error::Older { behind }) if behind == 100 * SECOND));
    for _ in 0..2 {
        let refused = shared.reload_url(&mut url, start());
        assert!(matches!(refused, Err(Error::Stale { .. })), "{refused:?}");
    }
    assert!(shared.current(start()).expect("fresh").contains(&LISTED_IN_A));
}

#[test]
fn a_url_whose_response_could_be_altered_is_refused() {
    for good in
        ["https://example.com/list", "http://localhost:80/", "http://[::1]/", "http://127.9.9.9/"]
    {
        assert!(ListUrl::new(good).is_ok(), "{good}");
    }
    for bad in [
        "http://example.com/list",
        "http://localhost.example.com/",
        "http://10.0.0.1/",
        "ftp://example.com/",
        "example.com/list",
        "/etc/blocklist",
        "",
        "https:///list",
    ] {
        let refused = ListUrl::new(bad).map(drop);
        assert!(matches!(refused, Err(Error::Config { field: "url", .. })), "{bad}: {refused:?}");
    }
    // The server speaks no TLS, and there is no fallback to HTTP.
    let server = Server::new([]);
    let mut url = ListUrl::new(&server.url.replace("http:", "https:")).expect("HTTPS");
    let refused = SharedBlocklist::open_url(&mut url, hourly(), start()).map(drop);
    assert!(matches!(refused, Err(Error::Request { .. })), "{refused:?}");
}

/// A proxy could alter the list, and its `localhost` is another machine.
#[test]
fn a_list_of_this_machine_bypasses_the_proxy_of_the_environment() {
    const URL: &str = "LIST_URL_OF_TEST";
    const NAME: &str = "url::a_list_of_this_machine_bypasses_the_proxy_of_the_environment";
    if let Ok(url) = std::env::var(URL) {
        let mut url = ListUrl::new(&url).expect("a server on this machine");
        SharedBlocklist::open_url(&mut url, hourly(), start()).expect("from the server itself");
        return;
    }
    let server = Server::new([ok("", A)]);
    // The child process has its own environment. Nothing listens on the proxy's port.
    let run = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", NAME])
        .env(URL, &server.url)
        .env("ALL_PROXY", "http://127.0.0.1:1")
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .output()
        .expect("it runs");
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && stdout.contains("1 passed"), "{stdout}");
}
