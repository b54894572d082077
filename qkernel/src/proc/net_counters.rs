//! Counters of the network as `/proc/net/snmp`, `netstat` and `snmp6` list them. Packets are the host's, which counts them for all
//! its users together, so here all counters are zero; the names are there because programs look for each of them.

use crate::proc::subject::Subject;
use crate::pseudo::Out;
use machine::errno::Result;

/// A protocol, its first values, which are no counters, and the names of all.
type Section = (&'static str, &'static str, &'static str);

const UDP: &str =
    "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors";

const SNMP: &[Section] = &[
    (
        "Ip",
        " 2 64",
        "Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards \
         InDelivers OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs \
         FragFails FragCreates OutTransmits",
    ),
    (
        "Icmp",
        "",
        "InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs InSrcQuenchs InRedirects InEchos \
         InEchoReps InTimestamps InTimestampReps InAddrMasks InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal \
         OutRateLimitHost OutDestUnreachs OutTimeExcds OutParmProbs OutSrcQuenchs OutRedirects OutEchos \
         OutEchoReps OutTimestamps OutTimestampReps OutAddrMasks OutAddrMaskReps",
    ),
    (
        "Tcp",
        " 1 200 120000 -1",
        "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs \
         OutSegs RetransSegs InErrs OutRsts InCsumErrors",
    ),
    ("Udp", "", UDP),
    ("UdpLite", "", UDP),
];

const NETSTAT: &[Section] = &[
    (
        "TcpExt",
        "",
        "SyncookiesSent SyncookiesRecv SyncookiesFailed EmbryonicRsts PruneCalled RcvPruned OfoPruned \
         OutOfWindowIcmps LockDroppedIcmps ArpFilter TW TWRecycled TWKilled PAWSActive PAWSEstab BeyondWindow \
         TSEcrRejected PAWSOldAck PAWSTimewait DelayedACKs DelayedACKLocked DelayedACKLost ListenOverflows \
         ListenDrops TCPHPHits TCPPureAcks TCPHPAcks TCPRenoRecovery TCPSackRecovery TCPSACKReneging \
         TCPSACKReorder TCPRenoReorder TCPTSReorder TCPFullUndo TCPPartialUndo TCPDSACKUndo TCPLossUndo \
         TCPLostRetransmit TCPRenoFailures TCPSackFailures TCPLossFailures TCPFastRetrans TCPSlowStartRetrans \
         TCPTimeouts TCPLossProbes TCPLossProbeRecovery TCPRenoRecoveryFail TCPSackRecoveryFail TCPRcvCollapsed \
         TCPBacklogCoalesce TCPDSACKOldSent TCPDSACKOfoSent TCPDSACKRecv TCPDSACKOfoRecv TCPAbortOnData \
         TCPAbortOnClose TCPAbortOnMemory TCPAbortOnTimeout TCPAbortOnLinger TCPAbortFailed TCPMemoryPressures \
         TCPMemoryPressuresChrono TCPSACKDiscard TCPDSACKIgnoredOld TCPDSACKIgnoredNoUndo TCPSpuriousRTOs \
         TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure TCPSackShifted TCPSackMerged TCPSackShiftFallback \
         TCPBacklogDrop PFMemallocDrop TCPMinTTLDrop TCPDeferAcceptDrop IPReversePathFilter TCPTimeWaitOverflow \
         TCPReqQFullDoCookies TCPReqQFullDrop TCPRetransFail TCPRcvCoalesce TCPOFOQueue TCPOFODrop TCPOFOMerge \
         TCPChallengeACK TCPSYNChallenge TCPFastOpenActive TCPFastOpenActiveFail TCPFastOpenPassive \
         TCPFastOpenPassiveFail TCPFastOpenListenOverflow TCPFastOpenCookieReqd TCPFastOpenBlackhole \
         TCPSpuriousRtxHostQueues BusyPollRxPackets TCPAutoCorking TCPFromZeroWindowAdv TCPToZeroWindowAdv \
         TCPWantZeroWindowAdv TCPSynRetrans TCPOrigDataSent TCPHystartTrainDetect TCPHystartTrainCwnd \
         TCPHystartDelayDetect TCPHystartDelayCwnd TCPACKSkippedSynRecv TCPACKSkippedPAWS TCPACKSkippedSeq \
         TCPACKSkippedFinWait2 TCPACKSkippedTimeWait TCPACKSkippedChallenge TCPWinProbe TCPKeepAlive TCPMTUPFail \
         TCPMTUPSuccess TCPDelivered TCPDeliveredCE TCPAckCompressed TCPZeroWindowDrop TCPRcvQDrop TCPWqueueTooBig \
         TCPFastOpenPassiveAltKey TcpTimeoutRehash TcpDuplicateDataRehash TCPDSACKRecvSegs TCPDSACKIgnoredDubious \
         TCPMigrateReqSuccess TCPMigrateReqFailure TCPPLBRehash TCPAORequired TCPAOBad TCPAOKeyNotFound TCPAOGood \
         TCPAODroppedIcmps",
    ),
    (
        "IpExt",
        "",
        "InNoRoutes InTruncatedPkts InMcastPkts OutMcastPkts InBcastPkts OutBcastPkts InOctets OutOctets \
         InMcastOctets OutMcastOctets InBcastOctets OutBcastOctets InCsumErrors InNoECTPkts InECT1Pkts InECT0Pkts \
         InCEPkts ReasmOverlaps",
    ),
];

/// Counters of version 6, by protocol.
const SNMP6: &[(&str, &str)] = &[
    (
        "Ip6",
        "InReceives InHdrErrors InTooBigErrors InNoRoutes InAddrErrors InUnknownProtos InTruncatedPkts InDiscards \
         InDelivers OutForwDatagrams OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs \
         ReasmFails FragOKs FragFails FragCreates InMcastPkts OutMcastPkts InOctets OutOctets InMcastOctets \
         OutMcastOctets InBcastOctets OutBcastOctets InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts OutTransmits",
    ),
    (
        "Icmp6",
        "InMsgs InErrors OutMsgs OutErrors InCsumErrors OutRateLimitHost InDestUnreachs InPktTooBigs InTimeExcds \
         InParmProblems InEchos InEchoReplies InGroupMembQueries InGroupMembResponses InGroupMembReductions \
         InRouterSolicits InRouterAdvertisements InNeighborSolicits InNeighborAdvertisements InRedirects \
         InMLDv2Reports OutDestUnreachs OutPktTooBigs OutTimeExcds OutParmProblems OutEchos OutEchoReplies \
         OutGroupMembQueries OutGroupMembResponses OutGroupMembReductions OutRouterSolicits \
         OutRouterAdvertisements OutNeighborSolicits OutNeighborAdvertisements OutRedirects OutMLDv2Reports",
    ),
    ("Udp6", UDP),
    (
        "UdpLite6",
        "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors MemErrors",
    ),
];

fn push_sections(out: &mut Out, sections: &[Section]) {
    for (protocol, first, names) in sections {
        write!(out, "{protocol}: {names}\n{protocol}:{first}");
        let counters = names.split(' ').count() - first.split_whitespace().count();
        for _ in 0..counters {
            out.push(b" 0");
        }
        out.push(b"\n");
    }
}

/// `snmp`.
pub fn snmp(_: &Subject, out: &mut Out) -> Result<()> {
    push_sections(out, SNMP);
    Ok(())
}

/// `netstat`.
pub fn netstat(_: &Subject, out: &mut Out) -> Result<()> {
    push_sections(out, NETSTAT);
    Ok(())
}

/// `snmp6`.
pub fn snmp6(_: &Subject, out: &mut Out) -> Result<()> {
    for (protocol, names) in SNMP6 {
        for name in names.split(' ') {
            writeln!(out, "{:<32}\t0", alloc::format!("{protocol}{name}"));
        }
    }
    Ok(())
}
