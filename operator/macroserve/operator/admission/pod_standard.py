"""Fields that a pod may set: those of Kubernetes' Pod Security Standard "restricted", and others
that are harmless or checked."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


POD_FIELDS = _words("""
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
    enableServiceLinks hostAliases hostIPC hostNetwork hostPID hostUsers hostname imagePullSecrets
    initContainers nodeName nodeSelector overhead preemptionPolicy priorityClassName
    readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName
    schedulingGates securityContext serviceAccount serviceAccountName setHostnameAsFQDN
    shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
    topologySpreadConstraints volumes
""")
CONTAINER_FIELDS = _words("""
    args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports
    readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext
    startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty
    volumeDevices volumeMounts workingDir
""")
POD_SECURITY_FIELDS = _words("""
    appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser
    seLinuxChangePolicy seLinuxOptions seccompProfile supplementalGroups supplementalGroupsPolicy
    sysctls
""")
CONTAINER_SECURITY_FIELDS = _words("""
    allowPrivilegeEscalation appArmorProfile capabilities privileged procMount
    readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile
""")
VOLUMES = _words("configMap downwardAPI emptyDir ephemeral image persistentVolumeClaim")
PROJECTED = _words("clusterTrustBundle configMap downwardAPI")
SAFE_SYSCTLS = _words("""
    kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports
    net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.tcp_fin_timeout
    net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_keepalive_time
    net.ipv4.tcp_rmem net.ipv4.tcp_syncookies net.ipv4.tcp_wmem
""")
SELINUX_TYPES = _words("container_t container_init_t container_kvm_t container_engine_t")
PROFILES = ("RuntimeDefault", "Localhost")
FREE_CAPABILITY = "NET_BIND_SERVICE"
CONFINING_ANNOTATIONS = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")
