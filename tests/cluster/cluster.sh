#!/usr/bin/env bash
# A real Slurm with several nodes on one machine, for the length of one command.
#   cluster.sh run N COMMAND...      starts a head and nodes node1 to nodeN, runs COMMAND on the head (it may be a
#                                    shell), and removes everything; exits with COMMAND's code
#   cluster.sh possible              exits with 77 and says why if it cannot run here
# On the head, while it runs:
#   cluster.sh on I COMMAND...       runs COMMAND on node I
#   cluster.sh node I off|on         powers the node off: all its processes die; boots it again
#   cluster.sh link I down|up        unplugs the node's network, plugs it in again
#   cluster.sh pair I J down|up      drops all packets between two nodes without an error; both still reach the others
#   cluster.sh rate I RATE|full      limits the node's network bandwidth (tc: 100mbit), or removes the limit
#   cluster.sh slurmd I kill|start   kills or starts the node's daemon only: its jobs live on
#   cluster.sh slurmctld stop|start  stops or starts the head's daemon, which saves its state as at any site
#
# The head is a pid, network, UTS, mount and IPC namespace; the nodes are such namespaces within it, on a
# bridge of the head. So each has its own hostname, address, process tree, /run and /dev/shm, and each node
# its own /tmp. The kernel removes everything when the head's first process ends for any reason. All other
# folders are the cluster's shared file system. Nodes see only these below /tmp: the cluster's own folder, the
# repository, the current folder and $LLAMESH_CLUSTER_SHARED (separated by colons). The cluster's folder,
# $LLAMESH_CLUSTER, has the logs in log/ and is removed at the end.
set -euo pipefail
self=$(readlink -f "$0")
repository=$(cd "$(dirname "$self")/../.." && pwd -P)
folder=${LLAMESH_CLUSTER:-}
network=10.77.0
source "$repository/tests/patience.sh"
export PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin:$PATH

die() { echo "cluster.sh: $*" >&2; exit 1; }
namespaces=(unshare --net --uts --mount --ipc --pid --fork --kill-child)

# --- before the start

possible() {
  local program
  for program in slurmctld slurmd srun munged ip unshare nsenter setpriv; do
    command -v "$program" >/dev/null || { echo "no $program here (scripts/setup.sh --tests)"; return 77; }
  done
  [[ $(id -u) == 0 ]] || { echo "not root, as Slurm's daemons must be"; return 77; }
  "${namespaces[@]}" --propagation private sh -c 'mount -t tmpfs none /run && ip link add br0 type bridge &&
    ip link add veth0 type veth peer name veth1' 2>/dev/null || { echo "no permission to create namespaces and networks"; return 77; }
}

write_configuration() {
  local nodes=$1 i
  { echo "127.0.0.1 localhost"
    echo "$network.1 head"
    for ((i = 1; i <= nodes; ++i)); do echo "$network.$((10 + i)) node$i"; done; } >"$folder/hosts"
  # Slurm gives up nodes and credentials expire within seconds, not minutes as at a site: a requeued
  # job waits until its old credential has expired. On a busy machine a healthy node takes longer to answer.
  cat >"$folder/slurm.conf" <<CONF
ClusterName=llamesh
SlurmctldHost=head($network.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
PriorityType=priority/basic
ReturnToService=2
SlurmdTimeout=$(stretched 5)
SlurmctldTimeout=$(stretched 5)
BatchStartTimeout=$(stretched 5)
MessageTimeout=$(stretched 3)
KillWait=30
UnkillableStepTimeout=120  # longer than the 60 s after which slurmstepd retries to report to an absent slurmctld
MinJobAge=600
JobRequeue=1
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/spool/%n/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
SlurmdParameters=config_overrides
NodeName=node[1-$nodes] NodeAddr=$network.[11-$((10 + nodes))] CPUs=16 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=node[1-$nodes] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
  # With Slurm's default PMIx fence, the tree, ranks occasionally leave MPI_Init too early. The templates
  # select the ring themselves; this is for ranks that tests start without a template.
  echo "PMIxCollFence=ring" >"$folder/mpi.conf"
}

run() {
  local nodes=$1 reason job code=0
  shift
  reason=$(possible) || die "$reason"
  folder=$(mktemp -d "${TMPDIR:-/tmp}/llamesh-cluster.XXXXXX")
  folder=$(cd "$folder" && pwd -P)
  trap 'rm -rf --one-file-system "$folder"' EXIT
  chmod 755 "$folder"
  mkdir "$folder"/{log,state,spool,node,tmp}
  (umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
  write_configuration "$nodes"
  # If this shell is killed, the kernel ends the cluster.
  LLAMESH_CLUSTER=$folder SLURM_CONF=$folder/slurm.conf \
    setpriv --pdeathsig KILL "${namespaces[@]}" --propagation private "$self" the-head "$nodes" "$@" <&0 &
  job=$!
  trap 'kill -KILL $job; wait $job || true; exit 130' INT
  trap 'kill -KILL $job; wait $job || true; exit 143' TERM HUP
  wait $job || code=$?
  return "$code"
}

# --- the first processes of the machines

# own_devices NAME: sets up what each machine has for itself.
own_devices() {
  mount -t proc proc /proc
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mount -t tmpfs -o mode=755 tmpfs /run
  mount --bind "$folder/hosts" /etc/hosts
  ip link set lo up
  mkdir -p /run/munge /run/lock
  munged --force --num-threads=2 --key-file="$folder/munge.key" --log-file="$folder/log/munged.$1.log" \
    --pid-file=/run/munge/munged.pid --seed-file=/run/munge/seed >>"$folder/log/munged.$1.log" 2>&1 </dev/null
}

# own_tmp: mounts a /tmp with only the shared folders in it. Slurm and Open MPI keep a node's files
# there.
own_tmp() {
  local shared
  mount -t tmpfs -o mode=1777 tmpfs "$folder/tmp"
  while IFS= read -r shared; do
    if [[ $shared == /tmp/* && ! -d $folder/tmp/${shared#/tmp/} ]]; then
      mkdir -p "$folder/tmp/${shared#/tmp/}"
      mount --rbind "$shared" "$folder/tmp/${shared#/tmp/}"
    fi
  done < <(tr : '\n' <<<"$folder:$repository:$PWD:${LLAMESH_CLUSTER_SHARED:-}")
  mount --rbind "$folder/tmp" /tmp
}

start_slurmctld() { (setsid slurmctld -D >>"$folder/log/slurmctld.out" 2>&1 </dev/null &); }

the_node() {
  local i=$1
  hostname "node$i"
  own_devices "node$i"
  own_tmp
  within 30 ip link show eth0 &>/dev/null
  ip addr add "$network.$((10 + i))/24" dev eth0
  ip link set eth0 up
  # A socket from before a reboot would block a step that is started again.
  rm -rf "$folder/spool/node$i"
  mkdir -p "$folder/spool/node$i"
  slurmd -D >>"$folder/log/slurmd.node$i.out" 2>&1 </dev/null &
  # As the machine's first process, bash reaps orphaned processes.
  while :; do sleep 1000 & wait $! || true; done
}

has_children() { [[ -n $(cat "/proc/$1/task/$1/children") ]]; }

boot() {
  local i=$1 parent children
  ip link del "veth$i" 2>/dev/null || true
  setsid "${namespaces[@]}" --propagation private "$self" the-node "$i" >>"$folder/log/node$i.log" 2>&1 </dev/null &
  parent=$!
  within 30 has_children "$parent" || die "node$i did not start: $(tail -n 3 "$folder/log/node$i.log")"
  children=$(cat "/proc/$parent/task/$parent/children")
  children=${children%% *}
  ip link add "veth$i" type veth peer name eth0 netns "$children"
  ip link set "veth$i" master br0 up
  echo "$children" >"$folder/node/$i"
}

idle_nodes_are() { [[ $(timeout 5 sinfo -h -t idle -o %D 2>/dev/null) == "$1" ]]; }

the_head() {
  local nodes=$1 i
  shift
  hostname head
  own_devices head
  ip link add br0 type bridge
  ip addr add "$network.1/24" dev br0
  ip link set br0 up
  for ((i = 1; i <= nodes; ++i)); do boot "$i"; done
  start_slurmctld
  if ! within 60 idle_nodes_are "$nodes"; then
    tail -n 5 "$folder"/log/* >&2
    die "only $(sinfo -h -t idle -o %D) of $nodes nodes came up"
  fi
  # Runs in a child, since signals do not end a machine's first process.
  "$@" && exit 0 || exit $?
}

# --- the commands on the head

# lose I J: sends node I's packets for node J to an address that no machine has. find_again I J:
# undoes this.
lose() { inside "$1" ip neigh replace "$network.$((10 + $2))" lladdr 02:00:00:00:00:01 dev eth0 nud permanent; }
find_again() { inside "$1" ip neigh del "$network.$((10 + $2))" dev eth0; }

# shape_with I COMMAND...: limits both ends of the node's cable by tc's COMMAND.
shape_with() {
  tc qdisc "$2" dev "veth$1" root "${@:3}"
  inside "$1" tc qdisc "$2" dev eth0 root "${@:3}"
}

inside() { nsenter -t "$(cat "$folder/node/$1")" --net --uts --mount --ipc --pid --wd="$PWD" -- "${@:2}"; }

case ${1:-} in
  run) run "${@:2}"; exit ;;
  possible) possible; exit ;;
  the-head) the_head "${@:2}"; exit ;;
  the-node) the_node "$2"; exit ;;
  on | node | link | pair | rate | slurmd | slurmctld) [[ -n $folder ]] || die "no cluster here: cluster.sh run N COMMAND..." ;;
esac
case "${1:-} ${3:-}" in
  on\ *) inside "$2" "${@:3}" ;;
  "node off") kill -KILL "$(cat "$folder/node/$2")" ;;
  "node on") boot "$2" ;;
  "rate full") shape_with "$2" del ;;
  rate\ ?*) shape_with "$2" replace tbf rate "$3" burst 64k latency 100ms ;;
  "link down" | "link up") ip link set "veth$2" "$3" ;;
  "slurmd kill") inside "$2" sh -c "kill -KILL \$(cat '$folder/spool/node$2/slurmd.pid')" ;;
  "slurmd start") inside "$2" setsid sh -c "slurmd -D >>'$folder/log/slurmd.node$2.out' 2>&1 </dev/null &" ;;
  *)
    case "${1:-} ${2:-}" in
      "slurmctld stop")
        daemon=$(cat "$folder/slurmctld.pid")
        kill -TERM "$daemon"
        for ((i = 0; i < 200; ++i)); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.05; done ;;
      "slurmctld start") start_slurmctld ;;
      pair\ *)
        case ${4:-} in
          down) lose "$2" "$3"; lose "$3" "$2" ;;
          up) find_again "$2" "$3"; find_again "$3" "$2" ;;
          *) die "pair I J down|up" ;;
        esac ;;
      *) sed -n '2,22s/^# \{0,1\}//p' "$self"; exit 2 ;;
    esac
    ;;
esac
