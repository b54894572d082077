# needs: perl
# quick: yes
. /programs/common.sh
cat >t.pl <<'P'
use strict; use warnings; use IO::Socket::INET; use POSIX ':sys_wait_h'; use Fcntl ':flock'; use threads; use IPC::Open3; use Time::HiRes qw(usleep alarm);
use File::Temp 'tempfile'; use File::Find; use Socket; use IPC::SysV qw(IPC_PRIVATE S_IRUSR S_IWUSR IPC_RMID); use DB_File;
$| = 1;
my @t = map { my $k = $_; threads->create(sub { my $s = 0; $s += $_ * $k for 1 .. 1000; $s }) } 1 .. 6;
print join(' ', map { $_->join } @t), "\n";
my $server = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', ReuseAddr => 1) or die;
my $port = $server->sockport;
my @children = map { my $n = $_; my $pid = fork; if (!$pid) { my $c = IO::Socket::INET->new("127.0.0.1:$port"); print $c "from $n\n"; exit(<$c> eq "thanks\n" ? $n : 100); } $pid } 1 .. 3;
my @got; for (1 .. 3) { my $c = $server->accept; push @got, scalar <$c>; print $c "thanks\n"; close $c }
print sort @got;
print join(' ', map { waitpid($_, 0); $? >> 8 } @children), "\n";
local $SIG{ALRM} = sub { die "alarm\n" }; eval { alarm 0.1; select(undef, undef, undef, 5); }; print $@;
my ($fh, $name) = tempfile(UNLINK => 1); flock($fh, LOCK_EX); print $fh 'x' x 10000; close $fh; print -s $name, "\n";
my %h; tie %h, 'DB_File', "$name.db", O_RDWR | O_CREAT, 0600 or print "no DB\n"; $h{$_} = $_ * 2 for 1 .. 1000; untie %h; tie %h, 'DB_File', "$name.db", O_RDWR, 0600; print scalar(keys %h), " $h{500}\n"; untie %h; unlink "$name.db";
my $id = shmget(IPC_PRIVATE, 100, S_IRUSR | S_IWUSR); shmwrite($id, 'shared', 0, 6); if (!fork) { my $b; shmread($id, $b, 0, 6); print "$b\n"; exit } wait; shmctl($id, IPC_RMID, 0);
my $n = 0; find(sub { $n++ if -d }, '/usr/share/perl'); print $n > 5 ? "found\n" : "few\n";
$0 = 'renamed'; open my $c, '<', "/proc/$$/cmdline"; print <$c> =~ /renamed/ ? "renamed\n" : "same name\n";
print scalar(getpwuid(0)), ' ', (gethostbyname('localhost') ? 'resolved' : 'unresolved'), "\n";
P
perl t.pl
perl -e 'exec "sh", "-c", "kill -SEGV \$\$"'; echo $?
