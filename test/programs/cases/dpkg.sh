# needs: dpkg-deb apt-get apt-cache
. /programs/common.sh
mkdir -p p/DEBIAN p/usr/share/t
cat >p/DEBIAN/control <<'P'
Package: t-program
Version: 1.0
Architecture: all
Maintainer: t <t@example.org>
Description: a test
P
printf '#!/bin/sh\necho "postinst $1"\nupdate-alternatives --install /usr/bin/t-alt t-alt /bin/true 10\n' >p/DEBIAN/postinst
printf '#!/bin/sh\necho "prerm $1"\nupdate-alternatives --remove t-alt /bin/true\n' >p/DEBIAN/prerm
chmod 755 p/DEBIAN/postinst p/DEBIAN/prerm
echo content >p/usr/share/t/f
echo /usr/share/t/f >p/DEBIAN/conffiles
dpkg-deb --root-owner-group -b p t.deb
dpkg -i t.deb 2>&1 | grep -v 'Reading database'
dpkg -s t-program | grep Status
readlink -f /usr/bin/t-alt
dpkg -V t-program; dpkg -L t-program; dpkg -S /usr/share/t/f
sed -i s/1.0/2.0/ p/DEBIAN/control; echo changed >p/usr/share/t/f
dpkg-deb --root-owner-group -b p t2.deb
# A repository of its own, so that nothing is asked of the network.
mkdir repo; cp t2.deb repo; (cd repo && dpkg-scanpackages -m . 2>/dev/null >Packages || { dpkg-deb -f t2.deb; echo "Filename: ./t2.deb"; echo "Size: $(stat -c %s t2.deb)"; echo "SHA256: $(sha256sum t2.deb | cut -d ' ' -f 1)"; } >Packages)
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
echo "deb [trusted=yes] file:$WORK/repo ./" >/etc/apt/sources.list
apt-get update 2>&1 | grep -v -i 'reading\|^Get\|^Ign\|fetched' | sed "s#$WORK##"
apt-get install -y t-program -o Dpkg::Options::=--force-confold 2>&1 | grep -E 'newly installed|postinst|^E|^W'
dpkg -s t-program | grep -E 'Status|Version'
apt-cache policy t-program | sed -n 2,3p
apt-get purge -y t-program 2>&1 | grep -E 'prerm|^E|^W'
dpkg -s t-program 2>&1 | head -n 1
dpkg --audit; apt-get check >/dev/null && echo sound
dpkg -l | wc -l | sed 's/[1-9][0-9]\{2,\}/hundreds/'
