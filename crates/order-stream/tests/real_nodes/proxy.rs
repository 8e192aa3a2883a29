//! A proxy in front of a server that drops some of the messages that its clients publish, or is
//! late with some of the responses.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use testkit::devnet::NatsServer;

/// Starts a proxy that forwards a message if `is_forwarded` returns true for its subject. Returns
/// the proxy's URL.
pub(crate) fn start(
    server: &NatsServer,
    is_forwarded: impl FnMut(&str) -> bool + Send + 'static,
) -> String {
    start_with_delays(server, is_forwarded, |_| Duration::ZERO)
}

/// Like [`start`]. A message whose payload is `payload` reaches its client `delay_of(payload)`
/// later, and so behind other messages.
pub(crate) fn start_with_delays(
    server: &NatsServer,
    is_forwarded: impl FnMut(&str) -> bool + Send + 'static,
    delay_of: fn(&[u8]) -> Duration,
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
            let (responses, to_client) = (server.try_clone()?, client.try_clone()?);
            thread::spawn(move || forward_messages(responses, to_client, delay_of));
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

/// Forwards the server's messages until either side closes.
fn forward_messages(
    server: TcpStream,
    client: TcpStream,
    delay_of: fn(&[u8]) -> Duration,
) -> io::Result<()> {
    let (mut server, mut message) = (BufReader::new(server), Vec::new());
    let client = Arc::new(Mutex::new(client));
    while server.read_until(b'\n', &mut message)? > 0 {
        let line = String::from_utf8_lossy(&message).into_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut delay = Duration::ZERO;
        if let ["MSG" | "HMSG", .., length] = words[..] {
            let (begin, length) = (message.len(), length.parse::<usize>().expect("a length"));
            message.resize(begin + length + "\r\n".len(), 0);
            server.read_exact(&mut message[begin..])?;
            delay = delay_of(&message[begin..]);
        }
        let (message, client) = (std::mem::take(&mut message), Arc::clone(&client));
        let send = move || client.lock().expect("no panic").write_all(&message);
        if delay.is_zero() {
            send()?;
        } else {
            thread::spawn(move || {
                thread::sleep(delay);
                send()
            });
        }
    }
    Ok(())
}
