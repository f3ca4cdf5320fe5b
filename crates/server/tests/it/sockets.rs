//! The event channel over real sockets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fresco_graph::{Value, json};
use tokio::task::block_in_place;
use tungstenite::{Message, WebSocket};

use crate::harness::{chain, picture, rig, rig_with};

pub struct Client(WebSocket<TcpStream>);

/// A text message as type and data, or a binary frame.
#[derive(Debug)]
pub enum Frame {
    Text(String, Value),
    Binary(Vec<u8>),
}

impl Frame {
    pub fn kind(&self) -> String {
        match self {
            Self::Text(kind, _) => kind.clone(),
            Self::Binary(b) => format!("#{}", b[3]),
        }
    }

    #[track_caller]
    pub fn data(&self) -> &Value {
        match self {
            Self::Text(_, data) => data,
            Self::Binary(_) => panic!("a binary frame has no data"),
        }
    }
}

impl Client {
    /// Connects and reads the greeting.
    pub fn open(address: SocketAddr, query: &str) -> (Self, Value) {
        let mut client = Self::try_open(address, query, &[]).unwrap();
        let greeting = client.next();
        assert_eq!(greeting.kind(), "status");
        let data = greeting.data().clone();
        (client, data)
    }

    fn try_open(
        address: SocketAddr,
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, String> {
        block_in_place(|| {
            let stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_mins(2)))
                .unwrap();
            let mut request = tungstenite::http::Request::builder()
                .uri(format!("ws://{address}/ws{query}"))
                .header("host", address.to_string())
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (socket, _) = tungstenite::client(request.body(()).unwrap(), stream)
                .map_err(|e| e.to_string())?;
            Ok(Self(socket))
        })
    }

    #[track_caller]
    pub fn next(&mut self) -> Frame {
        let message = block_in_place(|| self.0.read()).unwrap();
        match message {
            Message::Text(text) => {
                assert!(text.starts_with("{\"type\":"), "{text}");
                let value = json::parse(&text).unwrap();
                let kind = value.get("type").unwrap().as_str().unwrap().to_owned();
                Frame::Text(kind, value.get("data").unwrap().clone())
            }
            Message::Binary(bytes) => Frame::Binary(bytes.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    /// Frames up to the end of a prompt, the end included.
    #[track_caller]
    fn run(&mut self) -> Vec<Frame> {
        let mut out = Vec::new();
        loop {
            let frame = self.next();
            let end = frame.kind() == "executing" && frame.data().get("node").unwrap().is_null();
            out.push(frame);
            if end {
                return out;
            }
        }
    }

    pub fn send(&mut self, text: &str) {
        block_in_place(|| self.0.send(Message::text(text.to_owned()))).unwrap();
    }
}

fn kinds(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(Frame::kind).collect()
}

fn remaining(data: &Value) -> i128 {
    let info = data.get("status").unwrap().get("exec_info").unwrap();
    info.get("queue_remaining").unwrap().as_int().unwrap()
}

/// Node states of a snapshot: `1 finished, 2 running`.
fn states(data: &Value) -> String {
    let nodes = data.get("nodes").unwrap().as_map().unwrap();
    let state = |(id, node): (&std::sync::Arc<str>, &Value)| {
        format!("{id} {}", node.get("state").unwrap().as_str().unwrap())
    };
    nodes.iter().map(state).collect::<Vec<_>>().join(", ")
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_a_normal_run() {
    let rig = rig();
    let address = rig.listen().await;
    let (mut client, greeting) = Client::open(address, "?clientId=me");
    assert_eq!(greeting.get("sid").unwrap().as_str(), Some("me"));
    assert_eq!(remaining(&greeting), 0);
    let id = rig.queue(&picture(1), Some("me")).await;
    let frames = client.run();
    assert_eq!(
        kinds(&frames),
        [
            "status",
            "status",
            "execution_start",
            "execution_cached",
            "progress_state",
            "executing",
            "progress_state",
            "progress_state",
            "executing",
            "executed",
            "progress_state",
            "execution_success",
            "status",
            "executing"
        ]
    );
    assert_eq!(remaining(frames[0].data()), 1);
    assert_eq!(remaining(frames[1].data()), 1);
    assert!(frames[0].data().get("sid").is_none());
    for i in [2, 3, 11] {
        assert_eq!(
            frames[i].data().get("prompt_id").unwrap().as_str(),
            Some(id.as_str())
        );
        assert!(frames[i].data().get("timestamp").unwrap().as_int().unwrap() > 1_600_000_000_000);
    }
    assert_eq!(
        frames[3]
            .data()
            .get("nodes")
            .unwrap()
            .as_list()
            .unwrap()
            .len(),
        0
    );
    let snapshots: Vec<String> = frames
        .iter()
        .filter(|f| f.kind() == "progress_state")
        .map(|f| states(f.data()))
        .collect();
    assert_eq!(
        snapshots,
        [
            "1 running",
            "1 finished",
            "1 finished, 2 running",
            "1 finished, 2 finished"
        ]
    );
    assert_eq!(
        format!("{:?}", frames[5].data()),
        format!(r#"{{"node":"1","display_node":"1","prompt_id":"{id}"}}"#)
    );
    let executed = frames[9].data();
    assert_eq!(executed.get("node").unwrap().as_str(), Some("2"));
    assert!(executed.get("output").unwrap().get("images").is_some());
    assert_eq!(remaining(frames[12].data()), 0);
    assert_eq!(
        format!("{:?}", frames[13].data()),
        format!(r#"{{"node":null,"prompt_id":"{id}"}}"#)
    );
    let node = frames[4].data().get("nodes").unwrap().get("1").unwrap();
    let keys: Vec<&str> = node.as_map().unwrap().keys().map(AsRef::as_ref).collect();
    assert_eq!(
        keys,
        [
            "value",
            "max",
            "state",
            "node_id",
            "prompt_id",
            "display_node_id",
            "parent_node_id",
            "real_node_id"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_a_cached_run_and_s11_an_invalid_one() {
    let rig = rig();
    let address = rig.listen().await;
    let (mut client, _) = Client::open(address, "?clientId=me");
    rig.queue(&picture(1), Some("me")).await;
    let first = client.run();
    rig.post("/prompt", r#"{"prompt":{},"client_id":"me"}"#)
        .await
        .expect(400);
    rig.queue(&picture(1), Some("me")).await;
    let frames = client.run();
    assert_eq!(
        kinds(&frames),
        [
            "status",
            "status",
            "execution_start",
            "execution_cached",
            "executed",
            "progress_state",
            "execution_success",
            "status",
            "executing"
        ]
    );
    assert_eq!(
        frames[3].data().get("nodes").unwrap(),
        &Value::from(vec!["1", "2"])
    );
    assert_eq!(
        frames[4].data().get("output"),
        first[9].data().get("output")
    );
    assert_eq!(states(frames[5].data()), "2 finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn s2_progress_and_previews() {
    let rig = rig();
    let address = rig.listen().await;
    let (mut old, _) = Client::open(address, "?clientId=old");
    let (mut new, _) = Client::open(address, "?clientId=new");
    new.send(r#"{"type":"feature_flags","data":{"supports_preview_metadata":true}}"#);
    assert_eq!(new.next().kind(), "feature_flags");
    let prompt = |n: i64, png: bool| {
        format!(
            r#"{{"1":{{"class_type":"Number","inputs":{{"value":{n}}}}},"2":{{"class_type":"Steps","inputs":{{"count":["1",0],"png":{png}}}}}}}"#
        )
    };
    let interesting = |frames: &[Frame]| -> Vec<String> {
        let start = frames
            .iter()
            .rposition(|f| f.kind() == "executing" && !f.data().get("node").unwrap().is_null());
        let end = frames
            .iter()
            .position(|f| f.kind() == "execution_success")
            .unwrap();
        kinds(&frames[start.unwrap() + 1..end])
    };
    rig.queue(&prompt(2, false), Some("old")).await;
    let frames = old.run();
    assert_eq!(
        interesting(&frames),
        [
            "progress_state",
            "progress",
            "#1",
            "progress_state",
            "progress",
            "#1",
            "progress_state"
        ]
    );
    let bar = frames
        .iter()
        .find(|f| f.kind() == "progress")
        .unwrap()
        .data();
    assert_eq!(bar.get("value").unwrap().as_int(), Some(0));
    assert_eq!(bar.get("max").unwrap().as_int(), Some(2));
    assert_eq!(bar.get("node").unwrap().as_str(), Some("2"));
    let Frame::Binary(bytes) = frames.iter().find(|f| f.kind() == "#1").unwrap() else {
        panic!()
    };
    assert_eq!(&bytes[..], b"\0\0\0\x01\0\0\0\x01picture");

    rig.queue(&prompt(1, true), Some("new")).await;
    let frames = new.run();
    assert_eq!(
        interesting(&frames),
        ["progress_state", "#4", "progress", "progress_state"]
    );
    let Frame::Binary(bytes) = frames.iter().find(|f| f.kind() == "#4").unwrap() else {
        panic!()
    };
    let length = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let meta = json::parse(std::str::from_utf8(&bytes[8..8 + length]).unwrap()).unwrap();
    assert_eq!(meta.get("image_type").unwrap().as_str(), Some("image/png"));
    assert_eq!(&bytes[8 + length..], b"picture");
}

#[tokio::test(flavor = "multi_thread")]
async fn s4_an_error() {
    let rig = rig();
    let address = rig.listen().await;
    let (mut client, _) = Client::open(address, "?clientId=me");
    rig.queue(&chain(1, "Fail"), Some("me")).await;
    let frames = client.run();
    let kinds = kinds(&frames);
    assert_eq!(
        kinds[kinds.len() - 4..],
        ["executing", "execution_error", "status", "executing"]
    );
    assert!(!kinds.contains(&"execution_success".to_owned()));
    let error = frames[frames.len() - 3].data();
    assert_eq!(error.get("node_id").unwrap().as_str(), Some("2"));
    assert_eq!(error.get("node_type").unwrap().as_str(), Some("Fail"));
    assert_eq!(
        error.get("exception_type").unwrap().as_str(),
        Some("ValueError")
    );
    assert!(
        error
            .get("exception_message")
            .unwrap()
            .as_str()
            .unwrap()
            .starts_with("as asked")
    );
    assert_eq!(error.get("executed").unwrap(), &Value::from(vec!["1"]));
    assert!(error.get("traceback").unwrap().as_list().is_some());
    assert!(
        error
            .get("current_inputs")
            .unwrap()
            .get("value")
            .unwrap()
            .as_list()
            .is_some()
    );
    assert!(error.get("current_outputs").unwrap().as_list().is_some());
    assert!(error.get("timestamp").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_an_interrupt_and_the_next_prompt() {
    let rig = rig();
    let address = rig.listen().await;
    let (mut client, _) = Client::open(address, "?clientId=me");
    let id = rig.queue(&chain(1, "Wait"), Some("me")).await;
    while client.next().kind() != "executing" {}
    while client.next().kind() != "executing" {}
    rig.post("/interrupt", format!("{{\"prompt_id\":\"{id}\"}}"))
        .await
        .expect(200);
    let frames = client.run();
    assert_eq!(
        kinds(&frames),
        ["execution_interrupted", "status", "executing"]
    );
    let data = frames[0].data();
    assert_eq!(data.get("node_id").unwrap().as_str(), Some("2"));
    assert_eq!(data.get("node_type").unwrap().as_str(), Some("Wait"));
    assert_eq!(data.get("executed").unwrap(), &Value::from(vec!["1"]));
    rig.queue(&picture(1), Some("me")).await;
    assert_eq!(client.run().len(), 11, "the number was cached");
}

#[tokio::test(flavor = "multi_thread")]
async fn s9_without_a_client_and_s10_with_two() {
    let rig = rig();
    let address = rig.listen().await;
    let (mut a, _) = Client::open(address, "?clientId=a");
    let (mut b, _) = Client::open(address, "?clientId=b");
    let id = rig.queue(&picture(1), None).await;
    rig.finish(&id).await;
    rig.queue(&picture(2), Some("a")).await;
    let frames = a.run();
    let broadcast = [
        "status",
        "status",
        "progress_state",
        "progress_state",
        "progress_state",
        "progress_state",
        "status",
    ];
    assert_eq!(kinds(&frames)[..7], broadcast);
    assert_eq!(frames[7..].len(), 14);
    // B sees the same broadcast, then only the queue.
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.push(b.next().kind());
    }
    assert_eq!(seen[..7], broadcast);
    assert_eq!(seen[7..], ["status", "status", "status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_and_introducing() {
    let rig = rig();
    let address = rig.listen().await;
    let (_, greeting) = Client::open(address, "");
    let sid = greeting.get("sid").unwrap().as_str().unwrap();
    assert!(sid.len() == 32 && sid.bytes().all(|b| b.is_ascii_hexdigit()));
    let (mut client, _) = Client::open(address, "?clientId=x");
    // None of these counts as the first message.
    client.send("not json");
    client.send("[1]");
    client.send("3");
    block_in_place(|| client.0.send(Message::binary(vec![1, 2, 3]))).unwrap();
    client.send(r#"{"type":"feature_flags","data":{"x":1}}"#);
    let reply = client.next();
    assert_eq!(reply.kind(), "feature_flags");
    assert_eq!(Some(reply.data()), Some(&rig.get("/features").await.json()));
    client.send(r#"{"type":"feature_flags","data":{}}"#);
    let (mut late, _) = Client::open(address, "?clientId=y");
    late.send(r#"{"type":"hello"}"#);
    late.send(r#"{"type":"feature_flags","data":{}}"#);
    rig.queue(&picture(1), Some("x")).await;
    assert_eq!(client.next().kind(), "status", "no second reply");
    assert_eq!(
        late.next().kind(),
        "status",
        "too late to introduce oneself"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_again_takes_over() {
    let rig = rig();
    let address = rig.listen().await;
    let (first, _) = Client::open(address, "?clientId=k");
    let (mut second, _) = Client::open(address, "?clientId=k");
    drop(first);
    rig.queue(&picture(1), Some("k")).await;
    assert_eq!(second.run().len(), 14);
}

#[tokio::test(flavor = "multi_thread")]
async fn coming_back_in_the_middle() {
    let rig = rig();
    let address = rig.listen().await;
    let id = rig.queue(&chain(1, "Wait"), Some("k")).await;
    rig.until_event(&id, "executing").await;
    // The first node may still be running; wait for the second.
    let (mut client, _) = Client::open(address, "?clientId=k");
    let told = client.next();
    assert_eq!(told.kind(), "executing");
    assert!(told.data().get("node").unwrap().as_str().is_some());
    assert!(told.data().get("prompt_id").is_none());
    rig.post("/interrupt", "").await.expect(200);
    client.run();
}

#[tokio::test(flavor = "multi_thread")]
async fn log_subscription() {
    let rig = rig();
    let address = rig.listen().await;
    let (mut client, _) = Client::open(address, "?clientId=k");
    let subscribe = async |enabled: bool| {
        let body = format!(r#"{{"clientId":"k","enabled":{enabled}}}"#);
        rig.ask("PATCH", "/internal/logs/subscribe", &[], body)
            .await
            .expect(200);
    };
    subscribe(true).await;
    rig.app.logs.push("a line\n");
    let frame = client.next();
    assert_eq!(frame.kind(), "logs");
    let entries = frame.data().get("entries").unwrap().as_list().unwrap();
    assert_eq!(entries[0].get("m").unwrap().as_str(), Some("a line\n"));
    assert!(frame.data().get("size").unwrap().is_null());
    subscribe(false).await;
    rig.app.logs.push("another\n");
    rig.queue(&picture(1), Some("k")).await;
    assert_eq!(client.next().kind(), "status");
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_guarded_and_limited() {
    let rig = rig_with(|c, _| c.limits.socket_message = 1000);
    let address = rig.listen().await;
    assert!(Client::try_open(address, "", &[("origin", "http://evil.example")]).is_err());
    assert!(Client::try_open(address, "", &[("origin", "null")]).is_err());
    assert!(Client::try_open(address, "", &[("origin", &format!("http://{address}"))]).is_ok());
    let long = format!("?clientId={}", "x".repeat(2000));
    assert!(Client::try_open(address, &long, &[]).is_err());
    let (mut client, _) = Client::open(address, "");
    client.send(&"x".repeat(5000));
    assert!(
        block_in_place(|| client.0.read()).is_err(),
        "too long a message ends the connection"
    );
    rig.get("/ws").await.expect(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_connections_do_no_harm() {
    let rig = rig();
    let address = rig.listen().await;
    let talk = |bytes: &[u8]| {
        block_in_place(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_mins(2)))
                .unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        })
    };
    let many = "x: y\r\n".repeat(200);
    assert!(talk(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).starts_with("HTTP/1.1 431"));
    assert!(talk(b"\x16\x03\x01garbage\r\n\r\n").starts_with("HTTP/1.1 400"));
    let answer = talk(b"GET /prompt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_says_goodbye() {
    let rig = rig();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(fresco_server::serve::serve(
        vec![listener],
        std::sync::Arc::new(fresco_server::serve::Plain),
        rig.app.clone(),
        async {
            let _ = stopped.await;
        },
    ));
    let (mut client, _) = Client::open(address, "");
    stop.send(()).unwrap();
    let Message::Close(Some(frame)) = block_in_place(|| client.0.read()).unwrap() else {
        panic!("no close frame")
    };
    assert!(frame.reason.contains("stopping"));
    serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_let_go() {
    let rig = rig_with(|c, _| c.limits.socket_bytes = 1 << 20);
    let address = rig.listen().await;
    let (mut slow, _) = Client::open(address, "?clientId=slow");
    let prompt = r#"{"1":{"class_type":"Number","inputs":{"value":1000}},"2":{"class_type":"Steps","inputs":{"count":["1",0],"png":true,"bytes":100000}}}"#;
    let id = rig.queue(prompt, Some("slow")).await;
    // A hundred megabytes of results are more than sockets buffer; the run does not wait for the reader.
    rig.finish(&id).await;
    let mut pictures = 0;
    let mut last = -1;
    loop {
        match block_in_place(|| slow.0.read()) {
            Ok(Message::Binary(_)) => pictures += 1,
            Ok(Message::Text(text)) => {
                let message = json::parse(&text).unwrap();
                let kind = message.get("type").unwrap().as_str().unwrap();
                assert_ne!(kind, "execution_success", "no end after a gap");
                if kind == "progress" {
                    let value = message.get("data").unwrap().get("value").unwrap();
                    assert!(value.as_int().unwrap() > last, "in order");
                    last = value.as_int().unwrap();
                }
            }
            Ok(Message::Close(Some(frame))) => {
                assert!(frame.reason.contains("too slow"), "{frame:?}");
                break;
            }
            // The reason could not be delivered in time, the end of the connection could.
            Err(_) => break,
            Ok(other) => panic!("{other:?}"),
        }
    }
    assert!(pictures < 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_clients_all_get_their_end() {
    let rig = rig();
    let address = rig.listen().await;
    let mut clients: Vec<Client> = (0..100)
        .map(|i| Client::open(address, &format!("?clientId=c{i}")).0)
        .collect();
    for i in 0..clients.len() {
        rig.queue(&picture(i as i64), Some(&format!("c{i}"))).await;
    }
    for client in &mut clients {
        let kinds = kinds(&client.run());
        for kind in ["execution_start", "executed", "execution_success"] {
            assert_eq!(kinds.iter().filter(|k| *k == kind).count(), 1, "{kinds:?}");
        }
    }
}
