use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

fn queue(delays: Option<Delays>) -> HostQueue {
    HostQueue::start("test", delays).unwrap()
}

#[test]
fn work_runs_in_the_order_of_submission() {
    let queue = queue(Some(Delays::up_to(Duration::from_micros(50), 3)));
    let seen = Arc::new(Mutex::new(Vec::new()));
    for number in 0..200 {
        let seen = seen.clone();
        queue.submit("push", move || {
            seen.lock().unwrap().push(number);
            Ok(())
        });
    }
    queue.sync().unwrap();
    assert_eq!(*seen.lock().unwrap(), (0..200).collect::<Vec<_>>());
    assert!(queue.query().unwrap());
}

/// Until the sender sends, the queue stands still.
fn block(queue: &HostQueue) -> std::sync::mpsc::Sender<()> {
    let (sender, receiver) = channel();
    queue.submit("block", move || receiver.recv().map_err(|e| Fault::invalid(e.to_string())));
    sender
}

#[test]
fn a_waiting_queue_stands_still_until_the_event_passes() {
    let (first, second) = (queue(None), queue(None));
    let (event, value) = (HostEvent::new(), Arc::new(AtomicU32::new(0)));
    let go = block(&first);
    let written = value.clone();
    first.submit("write", move || {
        written.store(1, Ordering::Relaxed);
        Ok(())
    });
    first.record(&event);
    second.wait(&event);
    let (sender, seen) = channel();
    second
        .submit("read", move || sender.send(value.load(Ordering::Relaxed)).map_err(|e| Fault::invalid(e.to_string())));
    // The first queue cannot go on, hence neither can the second.
    assert!(seen.recv_timeout(Duration::from_millis(20)).is_err());
    assert!(!event.query().unwrap() && !second.query().unwrap());
    go.send(()).unwrap();
    assert_eq!(seen.recv(), Ok(1));
    event.sync().unwrap();
    assert!(event.query().unwrap());
}

#[test]
fn an_event_recorded_again_releases_nobody_who_waits_for_its_first_record() {
    let (first, second, third) = (queue(None), queue(None), queue(None));
    let event = HostEvent::new();
    let go = block(&first);
    first.record(&event);
    third.wait(&event);
    second.record(&event);
    event.sync().unwrap();
    assert!(event.query().unwrap());
    std::thread::sleep(Duration::from_millis(20));
    assert!(!third.query().unwrap(), "the first record has not passed");
    go.send(()).unwrap();
    third.sync().unwrap();
}

#[test]
fn an_event_that_was_never_recorded_has_passed() {
    let (queue, event) = (queue(None), HostEvent::new());
    queue.wait(&event);
    queue.sync().unwrap();
    event.sync().unwrap();
    assert!(event.query().unwrap());
}

#[test]
fn without_a_wait_two_queues_race() {
    // A writer and a reader on two queues: over the rounds the reader must see both orders.
    let (writer, reader) = (queue(Some(Delays::seeded(1))), queue(Some(Delays::seeded(2))));
    let mut seen = [false; 2];
    for round in 0..5_000 {
        let value = Arc::new(AtomicU32::new(0));
        let (written, read, (sender, found)) = (value.clone(), value, channel());
        writer.submit("write", move || {
            written.store(1, Ordering::Relaxed);
            Ok(())
        });
        reader.submit("read", move || {
            sender.send(read.load(Ordering::Relaxed)).map_err(|e| Fault::invalid(e.to_string()))
        });
        seen[found.recv().unwrap() as usize] = true;
        if seen == [true; 2] {
            return;
        }
        assert!(round < 4_999, "one order only: {seen:?}");
    }
}

#[test]
fn the_first_fault_is_reported_once_by_name_and_the_queue_goes_on() {
    let queue = queue(None);
    let (before, after) = (HostEvent::new(), HostEvent::new());
    let ran = Arc::new(AtomicU32::new(0));
    let count = |queue: &HostQueue| {
        let ran = ran.clone();
        queue.submit("count", move || {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    };
    count(&queue);
    queue.record(&before);
    queue.submit("gather", || Err(Fault::invalid("index 7 of 3")));
    queue.submit("rope", || Err(Fault::invalid("a later one")));
    count(&queue);
    queue.record(&after);
    before.sync().unwrap();
    let fault = after.sync().unwrap_err();
    assert_eq!((fault.message.as_str(), fault.origin.as_deref()), ("index 7 of 3", Some("gather")));
    queue.sync().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    count(&queue);
    queue.sync().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 3);
}

#[test]
fn a_panic_is_a_fault() {
    let queue = queue(None);
    queue.submit("gather", || panic!("out of cheese"));
    let fault = queue.sync().unwrap_err();
    assert_eq!((fault.code, fault.message.as_str()), (FaultCode::Panic, "panic in gather: out of cheese"));
    queue.sync().unwrap();
}

#[test]
fn dropping_finishes_the_work_and_joins_the_thread() {
    let ran = Arc::new(AtomicU32::new(0));
    let queue = queue(Some(Delays::up_to(Duration::from_micros(200), 9)));
    let event = HostEvent::new();
    for _ in 0..50 {
        let ran = ran.clone();
        queue.submit("count", move || {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    }
    queue.submit("fails", || Err(Fault::invalid("unheard")));
    queue.record(&event);
    drop(queue);
    // The thread has given back everything that it held.
    assert_eq!((ran.load(Ordering::Relaxed), Arc::strong_count(&ran)), (50, 1));
    assert_eq!(event.sync().unwrap_err().message, "unheard");
}

#[test]
fn elapsed_time_needs_two_events_that_have_passed() {
    let queue = queue(None);
    let (from, to, never) = (HostEvent::new(), HostEvent::new(), HostEvent::new());
    queue.record(&from);
    queue.submit("sleep", || {
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    });
    queue.record(&to);
    queue.sync().unwrap();
    assert!(HostEvent::elapsed(&from, &to).unwrap() >= Duration::from_millis(2));
    assert!(HostEvent::elapsed(&from, &never).unwrap_err().message.contains("second event"));
    never.record_now();
    assert!(HostEvent::elapsed(&to, &never).is_ok());
}
