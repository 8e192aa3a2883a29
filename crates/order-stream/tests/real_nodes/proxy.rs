//! A proxy in front of a server that drops some of the messages that its clients publish.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use testkit::devnet::NatsServer;

/// Starts a proxy that forwards a message if `is_forwarded` returns true for its subject. Returns
/// the proxy's URL.
pub(crate) fn start(
    server: &NatsServer,
    is_forwarded: impl FnMut(&str) -> bool + Send + 'static,
) -> String {
    let address = server.url().replace("nats://", "");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("its address"));
    let is_forwarded = Arc::new(Mutex::new(is_forwarded));
    thread::spawn(move || {
        for client in listener.incoming() {
            let is_forwarded = Arc::clone(&is_forwarded);
            let (client, server) = (client?, TcpStream::connect(&address)?);
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let (mut responses, mut to_client) = (server.try_clone()?, client.try_clone()?);
            thread::spawn(move || io::copy(&mut responses, &mut to_client));
            thread::spawn(move || {
                let is_forwarded = |subject: &str| is_forwarded.lock().expect("no panic")(subject);
                forward_commands(client, server, is_forwarded)
            });
        }
        io::Result::Ok(())
    });
    url
}

/// Forwards the client's commands until either side closes.
fn forward_commands(
    client: TcpStream,
    mut server: TcpStream,
    is_forwarded: impl Fn(&str) -> bool,
) -> io::Result<()> {
    let (mut client, mut command) = (BufReader::new(client), Vec::new());
    while client.read_until(b'\n', &mut command)? > 0 {
        let line = String::from_utf8_lossy(&command).into_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut forwards = true;
        if let ["PUB" | "HPUB", subject, .., length] = words[..] {
            let (begin, length) = (command.len(), length.parse::<usize>().expect("a length"));
            command.resize(begin + length + "\r\n".len(), 0);
            client.read_exact(&mut command[begin..])?;
            forwards = is_forwarded(subject);
        }
        if forwards {
            server.write_all(&command)?;
        }
        command.clear();
    }
    Ok(())
}
