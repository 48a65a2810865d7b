//! `vdk nvme bench`: operations a second, and how long they take.

mod order;
mod report;
mod worker;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use vdk_driver::nvme::{Controller, Namespace};

use super::arguments::{BenchArguments, Operation};
use crate::output;
use crate::signal::{Interrupted, StopRequest};

use order::Order;
use report::{Counts, Report};
use worker::Worker;

/// Runs the command.
pub(super) fn run(arguments: &BenchArguments, json: bool) -> Result<()> {
    if arguments.operation != Operation::Read {
        super::demand_consent(arguments.yes, "writing destroys what the namespace holds")?;
    }
    let stop = StopRequest::listen()?;
    let target = &arguments.target.target;
    let controller = super::start(target, "vdk nvme bench", arguments.queues, arguments.block_size)?;
    let namespace = super::namespace(&controller, &arguments.target)?;
    let stop = stop.watching(controller.device_events());
    let measured = measure(arguments, &controller, namespace, &stop);
    let stopped = controller.stop();
    let report = measured?;
    stopped?;
    if json { output::print_json(&report) } else { output::print(&report.render()) }?;
    if report.is_interrupted() {
        return Err(Interrupted("the device was stopped; what was measured before is shown").into());
    }
    Ok(())
}

fn measure(
    arguments: &BenchArguments,
    controller: &Arc<Controller>,
    namespace: Namespace,
    stop: &StopRequest,
) -> Result<Report> {
    let granted = controller.facts().queues;
    if granted < arguments.queues {
        log::warn!("the controller gives {granted} of {} queues", arguments.queues);
    }
    let queues = arguments.queues.min(granted);
    let per_operation = arguments.block_size >> namespace.block_exponent();
    if per_operation << namespace.block_exponent() != arguments.block_size || per_operation == 0 {
        bail!(
            "--block-size {} is not a multiple of the {} bytes of a block",
            arguments.block_size,
            namespace.block_length().as_u64()
        );
    }
    let mut workers = Vec::new();
    for queue in 0..queues {
        let order = Order::new(arguments, &namespace, per_operation, queue, queues)?;
        workers.push(Worker::new(controller, namespace, arguments, order)?);
    }
    let time = Duration::from_secs_f64(arguments.seconds);
    let mut counts = Counts::new();
    let mut workers = workers.into_iter();
    let Some(first) = workers.next() else { bail!("the controller gives no queue") };
    thread::scope(|scope| {
        let threads: Vec<_> = workers.map(|worker| scope.spawn(move || worker.run(time, stop))).collect();
        // The first queue is driven from here, so that one queue needs no other thread.
        counts.add(&first.run(time, stop)?)?;
        for thread in threads {
            let result = thread.join().map_err(|_| anyhow!("a thread of the measurement ended early"))?;
            counts.add(&result?)?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(Report::new(arguments, controller.facts(), &namespace, queues, &counts))
}
