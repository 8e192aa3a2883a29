//! A proxy before a server that loses some of what its clients publish.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use testkit::devnet::NatsServer;

/// Starts one, which passes a message on if this says so of its subject. Returns its URL.
pub(crate) fn before(
    server: &NatsServer,
    passes: impl FnMut(&str) -> bool + Send + 'static,
) -> String {
    let address = server.url().replace("nats://", "");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("its address"));
    let passes = Arc::new(Mutex::new(passes));
    thread::spawn(move || {
        for client in listener.incoming() {
            let passes = Arc::clone(&passes);
            let (client, server) = (client?, TcpStream::connect(&address)?);
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
            thread::spawn(move || io::copy(&mut from, &mut to));
            thread::spawn(move || {
                let passes = |subject: &str| passes.lock().expect("no panic")(subject);
                pass_on(client, server, passes)
            });
        }
        io::Result::Ok(())
    });
    url
}

/// Until either side closes.
fn pass_on(from: TcpStream, mut to: TcpStream, passes: impl Fn(&str) -> bool) -> io::Result<()> {
    let (mut from, mut command) = (BufReader::new(from), Vec::new());
    while from.read_until(b'\n', &mut command)? > 0 {
        let line = String::from_utf8_lossy(&command).into_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut is_passed = true;
        if let ["PUB" | "HPUB", subject, .., length] = words[..] {
            let (begin, length) = (command.len(), length.parse::<usize>().expect("a length"));
            command.resize(begin + length + "\r\n".len(), 0);
            from.read_exact(&mut command[begin..])?;
            is_passed = passes(subject);
        }
        if is_passed {
            to.write_all(&command)?;
        }
        command.clear();
    }
    Ok(())
}
