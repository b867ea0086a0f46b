// The first process of a pod, and of a node: it waits, and takes in orphans that have ended.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			child, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if child <= 0 && err != syscall.EINTR {
				break
			}
		}
	}
}
