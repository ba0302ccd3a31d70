/**
 * The messages between a manager, its workers and its clients.
 *
 * Messages carry data indices and the names of files. Parameters never travel here: they are in files
 * in the shared directory. Calls are short: `Worker.train` accepts a task and returns at once, and its
 * result comes as `Manager.reportUpdate`. You can repeat every call safely, because tasks, attempts,
 * updates and registrations have unique identities.
 *
 * On the wire: the binary protocol in framed transport, over TCP or TLS 1.3. With a token, a handshake
 * comes first and each frame is sealed. A message has at most 16 MiB. `docs/reference/protocol.md` gives
 * the bytes, and an example of each.
 *
 * People read names and reasons: a worker's name has 1 to 64 printable characters. An experiment's
 * identifier, and each file name, is bare: 1 to 200 printable bytes, without slash or backslash, and
 * without a leading dot.
 *
 * Generate with Thrift 0.24: `make stubs`. The generated code is committed.
 */
namespace py downpour.network.rpc.generated
namespace * downpour
namespace java org.downpour.rpc
namespace netstd Downpour.Rpc

/** We raise it when either side changes in a way that the other cannot understand. */
const i32 PROTOCOL = 5

/** A durable file in an experiment's directory. `name` is bare: no slash, no `..`. */
struct PublishedFile {
  1: required string name
  2: required i64 size_bytes
  /** XXH3-128 of the bytes, 32 hexadecimal digits. */
  3: required string checksum
}

/**
 * Indices of training examples, packed little-endian, `width_bytes` each; `count` of them. A width
 * of 16 is that of stretches: the first index of each, and the one after its last, 8 bytes each.
 * A shard's long list is a file instead, which a worker reads once.
 */
struct Indices {
  1: required i32 width_bytes
  2: required i64 count
  3: optional binary packed
  4: optional PublishedFile file
}

/** One attempt at a task; the task is (experiment, round, shard). Numbers count from 0. */
struct AttemptId {
  1: required string experiment
  2: required i32 round
  3: required i32 shard
  4: required i32 attempt
}

/** The published state of a task in training; another worker can continue it after `steps_done` steps. */
struct Snapshot {
  1: required PublishedFile file
  2: required i64 steps_done
  3: required i64 steps_total
}

/** The checksums of the steps that each process repeats before its first task of an experiment. */
struct TrialSums {
  /** The numeric class that they hold for, as text. */
  1: required string numeric_class
  /** Of the whole state: as built, and after each step. */
  2: required list<string> looks
  /** Whether two processes of the manager have agreed on them. */
  3: optional bool rehearsed
}

/** Train one shard in one round, starting from a model version. */
struct TaskMessage {
  1: required AttemptId id
  /** The resolved spec, as TOML; the same for all tasks of an experiment. */
  2: required PublishedFile spec
  /** The prepared dataset's folder under `datasets/`: a bare name. */
  3: required string dataset
  4: required PublishedFile model
  5: required Indices indices
  /** The shard's optimizer state after its last round, if the spec keeps it. */
  6: optional PublishedFile optimizer_state
  /** The asking manager's term; a worker that knows a later term refuses. */
  7: required i64 term
  /** The state to continue from, if a worker has begun the task before. */
  8: optional Snapshot snapshot
  /** The parameters that are never trained; the same for all tasks of an experiment. */
  9: optional PublishedFile frozen
  /** The share of the task's steps to train, above 0 and at most 1, from the first step on. */
  10: double share = 1.0
  /** If rounds overlap, the shard's last update: the task begins from the model moved by it. */
  11: optional PublishedFile step
  /**
   * If `model` is a difference: the versions before it. The first is complete, each other one is the
   * difference from its predecessor. A worker that has one of them reads only the later ones.
   */
  12: list<PublishedFile> leading = []
  /** The complete model, if an earlier attempt at the task could not read the differences. */
  13: optional PublishedFile whole
  /** If it trains a user's code; a worker whose steps differ refuses. */
  14: optional TrialSums trial
}

/** The result of a task. The worker's clock measures seconds. */
struct Update {
  1: required PublishedFile file
  2: required i64 samples
  3: required i64 steps
  /** Sample-weighted mean of the batches' losses. */
  4: required double loss
  5: required double load_seconds
  6: required double train_seconds
  7: required double publish_seconds
  8: optional PublishedFile optimizer_state
  /** The number of the worker's processes that computed its last step. */
  9: i32 processes = 1
  /** How often its worker has run out of memory in a step so far, and continued with fewer processes. */
  10: i32 shortages = 0
  /** The checksum of the trial's steps in the worker's process; empty if it did not repeat them. */
  11: string trial = ""
  /**
   * The mean losses of at most 32 stretches of its steps, in order, and the learning rate of the last
   * step of each. The k-th of n stretches ends after k / n of the steps, rounded up.
   */
  12: list<double> step_losses = []
  13: list<double> step_rates = []
}

enum FailureKind {
  /** NaN or infinity. */
  NON_FINITE = 1
  OUT_OF_MEMORY = 2
  /** A file was missing, short or altered. */
  STORE = 3
  /** Anything else in the task itself. */
  TASK = 4
  /** The manager told the worker to stop, or the worker is leaving. */
  CANCELLED = 5
  /** The spec asks for something impossible; it would fail on every worker. */
  SPEC = 6
  /** A factory's code has changed since the submission; the worker tried nothing. */
  OTHER_CODE = 7
}

/** The progress of a running attempt. */
struct Progress {
  1: required AttemptId attempt
  2: required i64 steps_done
  3: required i64 steps_total
  4: required double elapsed_seconds
  /** The newest one; heartbeats repeat it until the next one. */
  5: optional Snapshot snapshot
  /** How many bytes of files it has read and written since its last step. */
  6: optional i64 moved_bytes
}

/** The state of a worker's machine; shares are 0..1, and `cpu_others` excludes the worker itself. */
struct SystemState {
  1: required double cpu_others
  2: required double load_average
  3: required double memory_used
  4: required double io_wait
}

/** The resources of a worker's process; `cpu_share` is 1 for one full core. */
struct ProcessState {
  1: required double cpu_share
  /** Resident memory, including pages shared with other processes. */
  2: required i64 memory_bytes
  3: required i32 threads
}

/** The versions and hardware that decide the bits of a floating-point result. */
struct NumericClass {
  1: required string torch
  2: required string device
  3: required string instruction_set
}

/** A block of the training data, and the XXH3-128 digest of its bytes, in hexadecimal. */
struct BlockDigest {
  1: required string block
  2: required string digest
}

struct ManagerInfo {
  1: required i32 protocol
  2: required string version
  /** A file in the shared directory's `presence/`; the reader must send back its content. */
  3: required string presence_file
  4: required double heartbeat_seconds
  /** The leading manager's term; each successor has a higher one. Protocol 1 had none. */
  5: i64 term = 0
  /** Multiplies how long a worker waits for missing files. */
  6: double patience = 1.0
}

struct Registration {
  1: required string name
  /** The address of the worker's own service. */
  2: required string host
  3: required i32 port
  4: required i32 protocol
  5: required string version
  /** The content of the manager's presence file, as the worker reads it in its shared directory. */
  6: required string presence
  7: required NumericClass numeric_class
  8: required string hostname
  9: required i32 pid
  /** The attempt that the worker is training, if it returns to a manager that was away. */
  10: optional AttemptId running
  /** The user's labels for it, as KEY=VALUE. */
  11: optional list<string> labels
  /** The device that it trains on, with a number if the machine has several. */
  12: optional string device
  /** The numeric class of its processor, if `device` is another device. */
  13: optional NumericClass processor_class
  /** How many accelerators its machine has. */
  14: i32 cards = 0
}

struct Registered {
  /** The manager's name for this worker from now on. */
  1: required string worker
}

struct Heartbeat {
  1: required string worker
  2: required list<Progress> running
  3: required SystemState system
  4: optional ProcessState process
  /** Packages whose versions differ from those of the experiment's manager: one phrase each. */
  5: optional list<string> differs
}

struct HeartbeatReply {
  /** False: the manager does not know this worker (any more), which must register again. */
  1: required bool known
  /** Attempts the manager no longer wants. */
  2: required list<AttemptId> unwanted
  /** The minimum of seconds between two heartbeats, because the manager has many workers. */
  3: optional double interval_seconds
}

enum ExperimentState {
  WAITING = 1
  PREPARING = 2
  RUNNING = 3
  FINISHED = 4
  FAILED = 5
  CANCELLED = 6
}

/** A mean over the examples of an evaluation; the task gives its name. */
struct Metric {
  1: required string name
  2: required double value
}

struct ExperimentSummary {
  1: required string experiment
  2: required string name
  3: required ExperimentState state
  4: required i32 rounds_done
  5: required i32 rounds_total
  /** Why it failed, or why no worker trains it, in one line. */
  7: optional string reason
  /** The cause is in the spec, so the user can fix it. */
  8: optional bool asked_wrongly
  /** Of the last evaluation, in the task's order. Field 6 was just the accuracy. */
  9: optional list<Metric> metrics
  /** Of the last evaluation. */
  10: optional double loss
  /** The examples of the last evaluation: test, or validation. */
  11: optional string part
  /** Each epoch has as many rounds as its shards have meetings. */
  12: optional i32 epochs_done
  13: optional i32 epochs_total
  /** The quantiles 0.1, 0.5 and 0.9 of the time that it still takes; none if that cannot be said. */
  14: list<double> left_seconds = []
  /** Who submitted it, as USER@HOST. */
  15: string owner = ""
  /** Of the waiting experiments, the one with the highest priority is next. */
  16: i32 priority = 0
  /** A user paused it: it gives no new tasks. */
  17: bool paused = false
  /** As many workers can train it at a time. */
  18: i32 shards = 0
}

/** A forecast duration, in seconds: in so many of a hundred cases, the real one is shorter. */
struct Forecast {
  1: required double q10
  2: required double q50
  3: required double q90
  4: required double q98
}

struct TaskStatus {
  1: required i32 shard
  2: required string state
  3: optional string worker
  4: required i64 steps_done
  5: required i64 steps_total
  6: required double elapsed_seconds
  /** The time from its assignment to its update. */
  7: optional Forecast predicted
  /** Its predicted pace divided by the median pace of the round. */
  8: optional double slowness
  /** How many bytes of files its worker has read and written since its last step. */
  9: optional i64 moved_bytes
  /** The size of the last update of any shard; 0 before one. */
  10: optional i64 update_bytes
}

struct WorkerStatus {
  1: required string worker
  2: required string address
  3: required string state
  4: optional AttemptId running
  5: optional SystemState system
  6: required i64 tasks_done
  /** The median of its paces in the last rounds, each divided by its round's median. */
  7: optional double slowness
  8: optional NumericClass numeric_class
  /** The machine that its process runs on. */
  9: optional string hostname
  10: optional i32 pid
  11: optional list<string> labels
  12: optional string device
  /** The predicted share of a round's time that it saves; below zero, it costs time. */
  13: optional double saves
  /** It trains nothing; `saves` predicts the effect of its help. */
  14: optional bool stands_by
  /** Packages whose versions differ from the manager's, as the worker reported. */
  15: optional list<string> differs
  /** How many accelerators its machine has. */
  16: i32 cards = 0
  /** Why it gets no task of the experiment that is shown; absent if it may get one. */
  17: optional string unfit_because
}

struct Status {
  /** Grows with every change; hand it back to wait for the next one. */
  1: required i64 change
  2: required list<WorkerStatus> workers
  /** The experiment in the request, or the active one. */
  3: optional ExperimentSummary experiment
  /** The tasks of its current round, at most 10,000. */
  4: required list<TaskStatus> tasks
  /** How many more workers a policy has requested so far; any launcher may start them. */
  5: i32 wanted_workers = 0
  /** The last few, oldest first: seconds after the submission, the decision and its reason. */
  6: optional list<string> decisions
  /** The manager's own class, because it draws the initial parameters. */
  7: optional NumericClass numeric_class
  /** The manager's machine and process. */
  8: string hostname = ""
  9: i32 pid = 0
  /** The first waiting experiments, at most 40: the next one first, paused ones last. */
  10: list<ExperimentSummary> queue = []
}

/** Part of an experiment's record: JSON lines, as in its folder. */
struct RecordPage {
  1: required list<string> lines
  /** The line to continue from. */
  2: required i64 next_line
  3: required ExperimentSummary experiment
}

enum RefusalKind {
  /** The spec or another part of the request is wrong, or a field has a forbidden value. */
  ASKED = 1
  /** The versions are incompatible. */
  INCOMPATIBLE = 2
  /** The shared directory is a different one, or unreadable. */
  SHARED_DIRECTORY = 3
  /** No such experiment, worker or attempt. */
  UNKNOWN = 4
  /** Not now: busy with another task, or leaving. */
  BUSY = 5
}

/**
 * The peer understood the call, but refuses it. Mutable in Python, because the accelerated decoder
 * cannot set the enum of an immutable exception.
 */
exception Refusal {
  1: required RefusalKind kind
  2: required string field
  3: required string value
  /** The accepted values. */
  4: required string reason
} (python.immutable = "false")

service Manager {
  ManagerInfo describe()
  Registered registerWorker(1: Registration registration) throws (1: Refusal refusal)
  HeartbeatReply heartbeat(1: Heartbeat heartbeat)
  void reportUpdate(1: string worker, 2: AttemptId id, 3: Update update) throws (1: Refusal refusal)
  void reportFailure(1: string worker, 2: AttemptId id, 3: FailureKind kind, 4: string reason)
    throws (1: Refusal refusal)
  /** The worker has stopped as requested; another worker continues from the snapshot. */
  void reportHandOver(1: string worker, 2: AttemptId id, 3: Snapshot snapshot)
    throws (1: Refusal refusal)
  void leave(1: string worker, 2: string reason)
  /**
   * Tells which blocks of the data the worker has read, before a report whose file depends on them.
   * Returns those of which another worker has read other bytes; their attempt must fail as OTHER_CODE.
   * Protocol 5 began without this call.
   */
  list<string> reportBlocks(1: string worker, 2: string experiment, 3: list<BlockDigest> blocks)
    throws (1: Refusal refusal)

  /**
   * Returns the experiment's identifier, which ends with `request`. The spec is TOML. A repeated request
   * returns the same experiment; with a different spec, the manager refuses it. Choose 4 to 32 random
   * hexadecimal digits in lower case. `owner` is USER@HOST, for people. The waiting experiment with the
   * highest `priority` is next.
   */
  string submit(1: string spec, 2: string request, 3: string owner = "", 4: i32 priority = 0)
    throws (1: Refusal refusal)
  /**
   * Waits up to `wait_seconds`, at most 30, for a change after `after_change`. Empty experiment: the
   * active one.
   */
  Status status(1: string experiment, 2: i64 after_change, 3: double wait_seconds)
    throws (1: Refusal refusal)
  /**
   * Returns the last `limit` experiments, at most 1000, that users submitted before the one named
   * `before`, oldest first. Empty `before`: the last ones of all. The list is empty for the first
   * experiment, and for one that the manager does not know.
   */
  list<ExperimentSummary> listExperiments(1: string before, 2: i32 limit)
  void cancel(1: string experiment) throws (1: Refusal refusal)
  /**
   * Pauses an experiment, or continues it if not `paused`. A paused one gives no new tasks, and the next
   * one in the queue runs meanwhile. A waiting or paused one gets the `priority`. An absent field
   * changes nothing. Protocol 5 began without this call, and then without `priority`.
   */
  void pause(1: string experiment, 2: bool paused, 3: i32 priority) throws (1: Refusal refusal)
  /**
   * Records that someone disturbs a process of the experiment on purpose: `who` names the process and
   * `what` the disturbance, as text for people. The manager takes no action. Repeated calls give
   * repeated lines. Protocol 5 began without this call.
   */
  void disturbed(1: string experiment, 2: string who, 3: string what) throws (1: Refusal refusal)
  /**
   * Waits up to `wait_seconds` for a line at or after `from_line`, counted from 0. A page has at most
   * 1000 lines and about 4 MB, but at least one line if the record has one. Continue at `next_line`,
   * and stop at a page that has no lines and says that the experiment has ended.
   */
  RecordPage results(1: string experiment, 2: i64 from_line, 3: double wait_seconds)
    throws (1: Refusal refusal)
}

struct WorkerInfo {
  1: required i32 protocol
  2: required string version
  3: required string name
  4: optional AttemptId running
}

service Worker {
  WorkerInfo ping()
  /** Accepts the task and returns at once. */
  void train(1: TaskMessage task) throws (1: Refusal refusal)
  /** Stops the attempt at its next step; does nothing if it is not running. */
  void cancel(1: AttemptId id)
  /** Publishes the attempt's state at its next step and stops it; does nothing if it is not running. */
  void handOver(1: AttemptId id)
  /** Finishes the running attempt, then leaves. */
  void drain()
}
