/**
 * What a manager, its workers and its clients say to each other.
 *
 * Messages carry data indices and the names of files; parameters never travel here, they lie in the
 * shared directory. Calls are short: `Worker.train` accepts a task and returns at once, its result
 * comes as `Manager.reportUpdate`. Every call may be repeated safely: tasks, attempts, updates and
 * registrations carry identities of their own.
 *
 * On the wire: the binary protocol in framed transport, over TCP or TLS 1.3. Where there is a token,
 * a handshake comes first and frames are sealed. A message has at most 16 MiB. `docs/reference/protocol.md` has
 * the bytes, and an example of each.
 *
 * Names and reasons are text that people will read: a worker's name has 1 to 64 printable characters.
 * An experiment's identifier, and each name of a file, is bare: 1 to 200 bytes, printable, without
 * slash or backslash, not beginning with a dot.
 *
 * Generate with Thrift 0.24: `make stubs`. The generated code is committed.
 */
namespace py downpour.network.rpc.generated

/** Raised when either side changes in a way the other cannot understand. */
const i32 PROTOCOL = 5

/** A durable file in an experiment's directory. `name` is bare: no slash, no `..`. */
struct PublishedFile {
  1: required string name
  2: required i64 size_bytes
  /** XXH3-128 of the bytes, 32 hexadecimal digits. */
  3: required string checksum
}

/**
 * Indices of training examples, packed little-endian, `width_bytes` each; `count` of them.
 * A list too large for a message is a file instead.
 */
struct Indices {
  1: required i32 width_bytes
  2: required i64 count
  3: optional binary packed
  4: optional PublishedFile file
}

/** One try at a task; the task is (experiment, round, shard). Numbers count from 0. */
struct AttemptId {
  1: required string experiment
  2: required i32 round
  3: required i32 shard
  4: required i32 attempt
}

/** The published state of a task in training; whoever has it goes on after `steps_done` steps. */
struct Snapshot {
  1: required PublishedFile file
  2: required i64 steps_done
  3: required i64 steps_total
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
  /** The shard's optimizer state of the round before, where the spec keeps it. */
  6: optional PublishedFile optimizer_state
  /** Of the manager that asks; a worker that knows a later one refuses. */
  7: required i64 term
  /** Where to go on from, if the shard was begun before. */
  8: optional Snapshot snapshot
  /** The parameters that are never trained; the same for all tasks of an experiment. */
  9: optional PublishedFile frozen
  /** How much of the task's steps to train, above 0 and at most 1: the first of them. */
  10: double share = 1.0
  /** Where rounds overlap, the shard's last update: the task begins from the model moved by it. */
  11: optional PublishedFile step
  /**
   * Where `model` is a step: the versions from which it follows, each a step from the one before
   * it, the first one whole. A worker that has one of them reads those after it alone.
   */
  12: list<PublishedFile> leading = []
  /** The model in one file, where an attempt at the task could not read those that lead to it. */
  13: optional PublishedFile whole
}

/** What a task published. Seconds are the worker's own clock. */
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
  /** How many of the worker's processes computed its last step. */
  9: i32 processes = 1
  /** How often its worker found memory too small for a step so far, and went on with fewer. */
  10: i32 shortages = 0
}

enum FailureKind {
  /** NaN or infinity. */
  NON_FINITE = 1
  OUT_OF_MEMORY = 2
  /** A file was missing, short or altered. */
  STORE = 3
  /** Anything else in the task itself. */
  TASK = 4
  /** The worker was told to stop, or is leaving. */
  CANCELLED = 5
  /** The spec asks for what cannot be; no other worker would fare better. */
  SPEC = 6
  /** A factory's code is not the one that the experiment was submitted with; nothing was tried. */
  OTHER_CODE = 7
}

/** How far a running attempt has come. */
struct Progress {
  1: required AttemptId attempt
  2: required i64 steps_done
  3: required i64 steps_total
  4: required double elapsed_seconds
  /** The newest; mentioned until the next one. */
  5: optional Snapshot snapshot
}

/** The state of a worker's machine; shares are 0..1, `cpu_others` leaves out the worker itself. */
struct SystemState {
  1: required double cpu_others
  2: required double load_average
  3: required double memory_used
  4: required double io_wait
}

/** What a worker's own process uses; `cpu_share` is 1 for one core in full. */
struct ProcessState {
  1: required double cpu_share
  /** Resident; pages shared with other processes count in full. */
  2: required i64 memory_bytes
  3: required i32 threads
}

/** What decides the bits of a floating-point result. */
struct NumericClass {
  1: required string torch
  2: required string device
  3: required string instruction_set
}

struct ManagerInfo {
  1: required i32 protocol
  2: required string version
  /** A file in the shared directory's `presence/`, and what its reader must tell back. */
  3: required string presence_file
  4: required double heartbeat_seconds
  /** Of the leading manager; each that takes over has a higher one. Protocol 1 had none. */
  5: i64 term = 0
  /** Scales how long a worker looks for what is missing. */
  6: double patience = 1.0
}

struct Registration {
  1: required string name
  /** Where the worker's own service answers. */
  2: required string host
  3: required i32 port
  4: required i32 protocol
  5: required string version
  /** The content of the manager's presence file, read in the worker's shared directory. */
  6: required string presence
  7: required NumericClass numeric_class
  8: required string hostname
  9: required i32 pid
  /** What the worker is training already, where it comes back to a manager that was away. */
  10: optional AttemptId running
  /** What its user calls it by, as KEY=VALUE. */
  11: optional list<string> labels
  /** Where it trains, with its number if it is one of several. */
  12: optional string device
  /** In which class it computes on its processor, if `device` is another one. */
  13: optional NumericClass processor_class
}

struct Registered {
  /** The name the manager knows this worker by from now on. */
  1: required string worker
}

struct Heartbeat {
  1: required string worker
  2: required list<Progress> running
  3: required SystemState system
  4: optional ProcessState process
  /** Packages of which it has other versions than the manager of its experiment: a phrase each. */
  5: optional list<string> differs
}

struct HeartbeatReply {
  /** False: the manager does not know this worker (any more); register again. */
  1: required bool known
  /** Attempts the manager no longer wants. */
  2: required list<AttemptId> unwanted
  /** The seconds between two heartbeats must not be less: there are many workers. */
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

/** A mean over the examples of an evaluation; a task names it. */
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
  /** Why it failed, in one line. */
  7: optional string reason
  /** The cause lies in the spec, which the user can mend. */
  8: optional bool asked_wrongly
  /** Of the last evaluation, in the task's order. Number 6 was the accuracy alone. */
  9: optional list<Metric> metrics
  /** Of the last evaluation. */
  10: optional double loss
  /** The examples of the last evaluation: test, or validation. */
  11: optional string part
  /** Of these, every one has as many rounds as its shards meet in it. */
  12: optional i32 epochs_done
  13: optional i32 epochs_total
}

/** How long something takes, in seconds: of a hundred times, so many are shorter. */
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
  /** From its assignment to its update. */
  7: optional Forecast predicted
  /** Its predicted pace, over the median pace of the round. */
  8: optional double slowness
}

struct WorkerStatus {
  1: required string worker
  2: required string address
  3: required string state
  4: optional AttemptId running
  5: optional SystemState system
  6: required i64 tasks_done
  /** The median of its paces in the last rounds, each over its round's median. */
  7: optional double slowness
  8: optional NumericClass numeric_class
  /** Where its process runs. */
  9: optional string hostname
  10: optional i32 pid
  11: optional list<string> labels
  12: optional string device
  /** The share of a round's time that it is predicted to save; below zero, it costs time. */
  13: optional double saves
  /** It trains nothing; `saves` is what its help would save. */
  14: optional bool stands_by
  /** Packages of which it has other versions than the manager, as it has said. */
  15: optional list<string> differs
}

struct Status {
  /** Grows with every change; hand it back to wait for the next one. */
  1: required i64 change
  2: required list<WorkerStatus> workers
  /** Of the experiment that was asked for, or of the active one. */
  3: optional ExperimentSummary experiment
  /** Of its current round, at most 10,000. */
  4: required list<TaskStatus> tasks
  /** How many more workers a policy has asked for so far; whoever can start some may. */
  5: i32 wanted_workers = 0
  /** The last few, oldest first: when, in seconds after the submission, what was done, and why. */
  6: optional list<string> decisions
  /** The manager's own: it draws initial parameters. */
  7: optional NumericClass numeric_class
  /** The manager's process, and the machine that it runs on; empty and 0 of an earlier version. */
  8: string hostname = ""
  9: i32 pid = 0
}

/** Part of an experiment's record: JSON lines, as they stand in its folder. */
struct RecordPage {
  1: required list<string> lines
  /** Where to go on reading. */
  2: required i64 next_line
  3: required ExperimentSummary experiment
}

enum RefusalKind {
  /** The spec, or another thing that was asked for; also a field that holds what it may not. */
  ASKED = 1
  /** Versions that do not fit. */
  INCOMPATIBLE = 2
  /** The shared directory is another one, or cannot be read. */
  SHARED_DIRECTORY = 3
  /** No such experiment, worker or attempt. */
  UNKNOWN = 4
  /** Not now: busy with another task, or leaving. */
  BUSY = 5
}

/**
 * The call was understood, and the answer is no. Mutable in Python, because the accelerated decoder
 * cannot set the enum of an immutable exception.
 */
exception Refusal {
  1: required RefusalKind kind
  2: required string field
  3: required string value
  /** What would be accepted. */
  4: required string reason
} (python.immutable = "false")

service Manager {
  ManagerInfo describe()
  Registered registerWorker(1: Registration registration) throws (1: Refusal refusal)
  HeartbeatReply heartbeat(1: Heartbeat heartbeat)
  void reportUpdate(1: string worker, 2: AttemptId id, 3: Update update) throws (1: Refusal refusal)
  void reportFailure(1: string worker, 2: AttemptId id, 3: FailureKind kind, 4: string reason)
    throws (1: Refusal refusal)
  /** The worker has stopped where it was asked to; whoever has the snapshot goes on. */
  void reportHandOver(1: string worker, 2: AttemptId id, 3: Snapshot snapshot)
    throws (1: Refusal refusal)
  void leave(1: string worker, 2: string reason)

  /**
   * Returns the experiment's identifier, which ends with `request`. The spec is TOML. The same
   * request again is answered with the same experiment, and refused with another spec: choose 4 to
   * 32 hexadecimal digits, in lower case, at random.
   */
  string submit(1: string spec, 2: string request) throws (1: Refusal refusal)
  /**
   * Waits up to `wait_seconds`, 30 at most, for a change after `after_change`. Empty experiment: the
   * active one.
   */
  Status status(1: string experiment, 2: i64 after_change, 3: double wait_seconds)
    throws (1: Refusal refusal)
  /**
   * Returns the `limit` experiments, 1000 at most, that were submitted last before the one named
   * `before`, oldest first. Empty `before`: the last of all. Nothing is before the first one, and
   * before one that the manager does not know.
   */
  list<ExperimentSummary> listExperiments(1: string before, 2: i32 limit)
  void cancel(1: string experiment) throws (1: Refusal refusal)
  /**
   * Puts on record that someone disturbs a process of the experiment on purpose: `who` it is, and
   * `what` happens to it, as text for people. Nothing follows from it. Said twice, it stands there
   * twice. Protocol 5 began without this call.
   */
  void disturbed(1: string experiment, 2: string who, 3: string what) throws (1: Refusal refusal)
  /**
   * Waits up to `wait_seconds` for a line at or after `from_line`, counted from 0. A page has
   * at most 1000 lines and about 4 MB, but at least one line where there is one: go on at `next_line`,
   * and stop where a page without lines says that the experiment has ended.
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
  /** Stops the attempt at its next step; says nothing where it is not running. */
  void cancel(1: AttemptId id)
  /** Publish the attempt's state at its next step and stop; says nothing where it is not running. */
  void handOver(1: AttemptId id)
  /** Finish what is running, then leave. */
  void drain()
}
